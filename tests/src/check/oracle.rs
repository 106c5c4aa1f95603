//! When a job should fire, by brute force: every second is looked at. Shares no code with the
//! product's `schedule`.

use punctual::job::spec::JobSpec;

/// Every instant of the schedule in `from_ms <= instant < until_ms`, in Unix milliseconds; `None`
/// for a schedule that this oracle cannot read (it reads what the simulation makes: UTC, five or
/// six fields of numbers, lists, ranges and steps).
#[must_use]
pub fn instants(spec: &JobSpec, created_ms: i64, from_ms: i64, until_ms: i64) -> Option<Vec<i64>> {
    if !spec.enabled {
        return Some(vec![]);
    }
    let schedule = &spec.schedule;
    let matcher: Box<dyn Fn(i64) -> bool> = if let Some(cron) = &schedule.cron {
        let cron = Cron::read(cron)?;
        Box::new(move |second| cron.matches(second))
    } else if let Some(every) = &schedule.every {
        let period = every.ms_i64() / 1_000;
        let anchor = created_ms.div_euclid(1_000);
        Box::new(move |second| second > anchor && (second - anchor) % period == 0)
    } else if let Some(at) = &schedule.at {
        let at = rfc3339(at)?;
        Box::new(move |second| second == at)
    } else {
        return Some(vec![]);
    };
    let first = from_ms.div_euclid(1_000) + i64::from(from_ms.rem_euclid(1_000) != 0);
    let all = (first..)
        .take_while(|second| second * 1_000 < until_ms)
        .filter(|second| matcher(*second))
        .map(|second| second * 1_000);
    Some(all.collect())
}

struct Cron {
    fields: Vec<Vec<u32>>,
}

impl Cron {
    fn read(text: &str) -> Option<Self> {
        let mut words: Vec<&str> = text.split_whitespace().collect();
        if words.len() == 5 {
            words.insert(0, "0");
        }
        let bounds = [(0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 6)];
        if words.len() != bounds.len() {
            return None;
        }
        let fields = words
            .iter()
            .zip(bounds)
            .map(|(word, (low, high))| field(word, low, high))
            .collect::<Option<Vec<_>>>()?;
        Some(Self { fields })
    }

    fn matches(&self, second: i64) -> bool {
        let day = second.div_euclid(86_400);
        let of_day = second.rem_euclid(86_400);
        let (month, date) = month_and_date(day);
        let weekday = (day + 4).rem_euclid(7);
        let values = [
            of_day % 60,
            of_day / 60 % 60,
            of_day / 3_600,
            date,
            month,
            weekday,
        ];
        // The simulation restricts at most one of the two day fields, so their "or" never matters.
        self.fields
            .iter()
            .zip(values)
            .all(|(field, value)| field.iter().any(|allowed| i64::from(*allowed) == value))
    }
}

fn field(word: &str, low: u32, high: u32) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for part in word.split(',') {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (range, step.parse().ok()?),
            None => (part, 1),
        };
        let (from, to) = match range.split_once('-') {
            _ if range == "*" => (low, high),
            Some((from, to)) => (from.parse().ok()?, to.parse().ok()?),
            None => {
                let only = range.parse().ok()?;
                (only, only)
            }
        };
        let mut value = from;
        while value <= to {
            all.push(value);
            value += step;
        }
    }
    Some(all)
}

/// Month and date of a day since 1970-01-01, by walking year by year and month by month.
fn month_and_date(day: i64) -> (i64, i64) {
    let leap = |year: i64| (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    let mut left = day;
    let mut year = 1970;
    loop {
        let length = if leap(year) { 366 } else { 365 };
        if left < length {
            break;
        }
        left -= length;
        year += 1;
    }
    let february = if leap(year) { 29 } else { 28 };
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (month, left + 1)
}

/// `2026-03-01T00:00:00.000Z` as Unix seconds.
pub(crate) fn rfc3339(text: &str) -> Option<i64> {
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<i64>().ok();
    let (year, month, date) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    let mut day = (year - 1970) * 365;
    // Leap years until then: enough of the calendar for dates near the simulation's.
    day += (1972..year).step_by(4).count() as i64;
    let day = (day..day + 366).find(|day| month_and_date(*day) == (month, date))?;
    Some(day * 86_400 + hour * 3_600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use punctual::job::spec::JobSpec;

    use super::*;

    const MARCH: i64 = 1_772_323_200_000;

    #[test]
    fn reads_what_the_simulation_makes() {
        let count = |cron: &str| {
            let spec = JobSpec::handler("a", "h").cron(cron);
            instants(&spec, 0, MARCH, MARCH + 3_600_000).unwrap().len()
        };
        assert_eq!(count("* * * * * *"), 3_600);
        assert_eq!(count("*/7 * * * * *"), 9 * 60);
        assert_eq!(count("3,40 * * * * *"), 120);
        assert_eq!(count("5-9 * * * * *"), 300);
        assert_eq!(count("5 */2 * * * *"), 30);
        assert_eq!(count("* * * * *"), 60);
        assert_eq!(count("0 0 1 3 *"), 1);
        assert_eq!(count("0 0 2 3 *"), 0);
        // 2026-03-01 is a Sunday.
        assert_eq!(count("0 0 * * 0"), 1);
    }

    #[test]
    fn reads_instants_and_periods() {
        assert_eq!(rfc3339("2026-03-01T00:00:00.000Z"), Some(MARCH / 1_000));
        assert_eq!(rfc3339("2024-02-29T23:59:59Z"), Some(1_709_251_199));
        let spec = JobSpec::handler("a", "h").every(punctual::duration::Millis::from_secs(10));
        assert_eq!(
            instants(&spec, MARCH + 700, MARCH, MARCH + 25_000).unwrap(),
            [MARCH + 10_000, MARCH + 20_000]
        );
    }
}
