//! The days of a month that weekday bits and the rarer items (`L`, `W`, `#`) come to.

/// What few expressions use.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Extra {
    /// Bit n: n days before the last day of the month.
    pub(crate) last: u32,
    /// Bit n: the weekday nearest to day n.
    pub(crate) nearest: u32,
    /// Bit n: the weekday nearest to n days before the last one.
    pub(crate) last_nearest: u32,
    /// Weekday bits of the first, second, .. fifth of the month.
    pub(crate) nth: [u8; 5],
    /// Weekday bits of the last of the month.
    pub(crate) last_weekdays: u8,
    /// Bit n: the year 1970 + n.
    pub(crate) years: Option<[u64; 4]>,
}

impl Extra {
    /// Days of the month that the day field's special items name.
    pub(crate) fn days(&self, length: u32, first_weekday: u32) -> u32 {
        let mut days = 0;
        each_bit(self.last, |back| {
            if back < length {
                days |= 1 << (length - back);
            }
        });
        each_bit(self.nearest, |day| {
            if day <= length {
                days |= 1 << nearest_workday(day, length, first_weekday);
            }
        });
        each_bit(self.last_nearest, |back| {
            if back < length {
                days |= 1 << nearest_workday(length - back, length, first_weekday);
            }
        });
        days
    }

    /// Days of the month that the weekday field's special items name.
    pub(crate) fn weekdays(&self, length: u32, first_weekday: u32) -> u32 {
        let mut days = 0;
        for (week, &weekdays) in self.nth.iter().enumerate() {
            if weekdays != 0 {
                days |= spread(weekdays, first_weekday) & (0x7f << (week * 7 + 1)) as u32;
            }
        }
        if self.last_weekdays != 0 {
            days |= spread(self.last_weekdays, first_weekday) & (0x7f << (length - 6)) as u32;
        }
        days
    }
}

/// The days, bit n for day n, of weekday bits in a month that begins on `first_weekday`.
#[inline]
pub(crate) fn spread(weekdays: u8, first_weekday: u32) -> u32 {
    let week = u64::from(weekdays);
    let turned = (week >> first_weekday | week << (7 - first_weekday)) & 0x7f;
    // Five copies, seven bits apart, and day 1 at bit 1.
    ((turned * 0x1020_4081) << 1) as u32
}

/// The day from Monday to Friday nearest to `day`, in the same month.
fn nearest_workday(day: u32, length: u32, first_weekday: u32) -> u32 {
    match (first_weekday + day - 1) % 7 {
        6 if day == 1 => 3,
        6 => day - 1,
        0 if day == length => day - 2,
        0 => day + 1,
        _ => day,
    }
}

fn each_bit(mut bits: u32, mut f: impl FnMut(u32)) {
    while bits != 0 {
        f(bits.trailing_zeros());
        bits &= bits - 1;
    }
}
