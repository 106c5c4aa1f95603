//! A compiled cron expression: sets of bits, 40 bytes and a box for what few expressions use.

use super::ast::{Ast, Field, Item, Numbering, YEAR_MAX, YEAR_MIN};
use super::civil::{self, days_in_month};
use super::days::{Extra, spread};
use super::error::ScheduleError;
use super::parse::{self, Parsed};
use super::reading::ambiguous;
use super::search::Steps;
use super::spec::{Dialect, DstRules};
use super::walk;
use super::zone::Zone;

/// A cron expression, reduced to what it matches.
///
/// ```
/// use punctual::schedule::{Zone, cron::Cron, Dialect};
/// let cron = Cron::parse("30 9 * * MON-FRI", Dialect::Auto).unwrap();
/// let shanghai = Zone::get("Asia/Shanghai").unwrap();
/// // 2026-01-01T00:00:00Z is Thursday, 08:00 in Shanghai.
/// assert_eq!(cron.next(1_767_225_600_000, &shanghai), Some(1_767_231_000_000));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cron {
    /// Bit n: second n.
    pub(crate) seconds: u64,
    /// Bit n: minute n.
    pub(crate) minutes: u64,
    /// Bit n: hour n.
    pub(crate) hours: u32,
    /// Bit n: day n of the month.
    pub(crate) days: u32,
    /// Bit n: month n.
    pub(crate) months: u16,
    /// Bit n: weekday n, 0 is Sunday.
    pub(crate) weekdays: u8,
    /// A day matches when either day field does, not both.
    pub(crate) either_day: bool,
    pub(crate) interval: bool,
    pub(crate) never: bool,
    /// What happens to fixed times when the clock is changed. Here, and not in the schedule
    /// around it, because here are two bytes to spare.
    pub(crate) dst: DstRules,
    pub(crate) extra: Option<Box<Extra>>,
}

pub(crate) const ALL_WEEKDAYS: u8 = 0x7f;

impl Cron {
    /// Reads an expression.
    ///
    /// # Errors
    /// With field, position and advice when the text is no expression of the dialect, or when
    /// `auto` leaves open which weekday a number means. An expression that never fires is read.
    pub fn parse(text: &str, dialect: Dialect) -> Result<Self, ScheduleError> {
        Self::parse_with(text, dialect, None)
    }

    /// Reads an expression; an error about an ambiguous weekday lists the next three dates of
    /// both readings after `example_after_ms` (Unix milliseconds) in that zone.
    ///
    /// # Errors
    /// As [`Cron::parse`].
    pub fn parse_with(
        text: &str,
        dialect: Dialect,
        example_after_ms: Option<(i64, &Zone)>,
    ) -> Result<Self, ScheduleError> {
        Self::read(text, dialect, example_after_ms).map(|(_, cron)| cron)
    }

    /// The dialect that a text is read by: what `auto` comes to, to be stored with the job.
    ///
    /// # Errors
    /// As [`Cron::parse`].
    pub fn dialect_of(text: &str, dialect: Dialect) -> Result<Dialect, ScheduleError> {
        Self::read(text, dialect, None).map(|(ast, _)| ast.numbering.dialect())
    }

    /// The expression as written and as compiled.
    pub(crate) fn read(
        text: &str,
        dialect: Dialect,
        example_after_ms: Option<(i64, &Zone)>,
    ) -> Result<(Ast, Self), ScheduleError> {
        match parse::parse(text, dialect)? {
            Parsed::Done(ast) => {
                let cron = Self::compile(&ast);
                Ok((*ast, cron))
            }
            Parsed::Ambiguous {
                unix,
                quartz,
                start,
                len,
            } => Err(ambiguous(unix, quartz, (start, len), example_after_ms)),
        }
    }

    pub(crate) fn compile(ast: &Ast) -> Self {
        let mut extra = Extra::default();
        let mut cron = Self {
            seconds: bits(&ast.second),
            minutes: bits(&ast.minute),
            hours: bits(&ast.hour) as u32,
            days: bits(&ast.day) as u32,
            months: bits(&ast.month) as u16,
            weekdays: weekday_bits(&ast.weekday),
            either_day: false,
            interval: false,
            never: false,
            dst: DstRules::default(),
            extra: None,
        };
        for &item in ast.day.items.iter().chain(&ast.weekday.items) {
            let day = |number: u32| 1u8 << weekday_index(ast.numbering, number);
            match item {
                Item::Last(days) => extra.last |= 1 << days,
                Item::Nearest(day) => extra.nearest |= 1 << day,
                Item::LastNearest(days) => extra.last_nearest |= 1 << days,
                Item::Nth(number, nth) => extra.nth[nth as usize - 1] |= day(number),
                Item::LastWeekday(number) => extra.last_weekdays |= day(number),
                _ => {}
            }
        }
        if let Some(years) = &ast.year
            && !years.is_open()
        {
            let set = extra.years.insert([0; 4]);
            for year in years.items.iter().flat_map(|&item| years.values(item)) {
                let index = (year - YEAR_MIN) as usize;
                set[index / 64] |= 1 << (index % 64);
            }
        }
        if extra != Extra::default() {
            cron.extra = Some(Box::new(extra));
        }
        cron.either_day = ast.numbering == Numbering::Unix
            && !ast.day.star
            && !ast.weekday.star
            && !ast.weekday.plus;
        cron.interval = [&ast.second, &ast.minute, &ast.hour]
            .iter()
            .any(|field| field.is_stepped())
            || cron.seconds.count_ones() == 60
            || cron.minutes.count_ones() == 60
            || cron.hours.count_ones() == 24;
        cron.never = !cron.has_a_day();
        cron
    }

    /// Whether it is an interval (follows the real time through a change of the clock) and not a
    /// fixed time: its second, minute or hour holds `*` or a step or covers its whole range.
    #[must_use]
    pub fn is_interval(&self) -> bool {
        self.interval
    }

    /// Whether no day of the calendar ever matches, such as 30 February.
    #[must_use]
    pub fn never_fires(&self) -> bool {
        self.never
    }

    /// The same expression under other rules for changes of the clock. An instant that
    /// [`Gap::Skip`](super::Gap::Skip) skips is an instant here all the same; the
    /// [`Schedule`](super::Schedule) around it knows the verdict.
    #[must_use]
    pub fn with_dst(mut self, dst: DstRules) -> Self {
        self.dst = dst;
        self
    }

    /// The first fire strictly after an instant, both in Unix milliseconds; `None` is never.
    /// Changes of the clock follow the default rules, unless [`Cron::with_dst`] sets others.
    #[must_use]
    pub fn next(&self, after_ms: i64, zone: &Zone) -> Option<i64> {
        walk::next(self, zone, walk::second_after(after_ms)).map(|hit| hit.at * 1_000)
    }

    /// The last fire strictly before an instant; the mirror of [`Cron::next`].
    #[must_use]
    pub fn previous(&self, before_ms: i64, zone: &Zone) -> Option<i64> {
        walk::previous(self, zone, walk::second_before(before_ms)).map(|hit| hit.at * 1_000)
    }

    /// [`Cron::next`], with its work added to `steps`.
    #[must_use]
    pub fn next_counted(&self, after_ms: i64, zone: &Zone, steps: &mut Steps) -> Option<i64> {
        let from = walk::second_after(after_ms);
        walk::next_counted(self, zone, from, steps).map(|hit| hit.at * 1_000)
    }

    /// [`Cron::previous`], with its work added to `steps`.
    #[must_use]
    pub fn previous_counted(&self, before_ms: i64, zone: &Zone, steps: &mut Steps) -> Option<i64> {
        let from = walk::second_before(before_ms);
        walk::previous_counted(self, zone, from, steps).map(|hit| hit.at * 1_000)
    }

    /// Whether the years of the field hold `year`.
    pub(crate) fn has_year(&self, year: i32) -> bool {
        match self.years() {
            None => true,
            Some(years) => {
                let index = year - YEAR_MIN as i32;
                (0..256).contains(&index) && years[index as usize / 64] >> (index % 64) & 1 == 1
            }
        }
    }

    pub(crate) fn years(&self) -> Option<&[u64; 4]> {
        self.extra.as_ref().and_then(|extra| extra.years.as_ref())
    }

    /// The days of a month that match, bit n for day n.
    #[inline]
    pub(crate) fn days_of(&self, year: i32, month: u32) -> u32 {
        let length = days_in_month(year, month);
        let all = ((1u64 << (length + 1)) - 2) as u32;
        if self.weekdays == ALL_WEEKDAYS && !self.either_day {
            return match &self.extra {
                None => self.days & all,
                Some(extra) => {
                    let first = civil::weekday(civil::days_from_civil(year, month, 1));
                    (self.days | extra.days(length, first)) & all
                }
            };
        }
        let first = civil::weekday(civil::days_from_civil(year, month, 1));
        let mut days = self.days;
        let mut weekdays = spread(self.weekdays, first);
        if let Some(extra) = &self.extra {
            days |= extra.days(length, first);
            weekdays |= extra.weekdays(length, first);
        }
        let matching = if self.either_day {
            days | weekdays
        } else {
            days & weekdays
        };
        matching & all
    }

    /// Whether any day of 400 years (after which the calendar repeats) or of its years matches.
    fn has_a_day(&self) -> bool {
        let years = if self.years().is_some() {
            YEAR_MIN as i32..=YEAR_MAX as i32
        } else {
            2000..=2399
        };
        years.into_iter().any(|year| {
            self.has_year(year)
                && (1..=12)
                    .any(|month| self.months >> month & 1 == 1 && self.days_of(year, month) != 0)
        })
    }
}

fn bits(field: &Field) -> u64 {
    field
        .items
        .iter()
        .flat_map(|&item| field.values(item))
        .fold(0, |bits, value| bits | 1 << value)
}

/// 0 for Sunday from the number of a dialect.
pub(crate) fn weekday_index(numbering: Numbering, number: u32) -> u32 {
    match numbering {
        Numbering::Unix => number % 7,
        Numbering::Quartz => number - 1,
    }
}

fn weekday_bits(field: &Field) -> u8 {
    field
        .items
        .iter()
        .flat_map(|&item| field.values(item))
        .fold(0, |bits, value| {
            bits | 1 << weekday_index(field.limits.numbering, value)
        })
}
