//! What is odd about a schedule, in no language.

use super::super::ast::{Ast, Field, FieldKind, Item, Numbering};
use super::super::civil::DAY;
use super::super::compiled::Schedule;
use super::super::cron::{ALL_WEEKDAYS, Cron};
use super::super::items::has_weekday_number;
use super::super::reading::weekday_text;
use super::super::search::Steps;
use super::super::spec::{Gap, Overlap};
use super::super::walk::MAX_GAP;
use super::super::zone::Stretch;
use super::LintCode;

/// Something odd, with what its text needs.
pub(super) enum Fact {
    /// The one date that never comes (day, month), if it is one.
    Never(Option<(u32, u32)>),
    /// The last instant that it had.
    Ended(Option<String>),
    /// The field, its step, and how much shorter the last step is.
    UnevenStep(FieldKind, u32, u32),
    /// The field, and its step.
    StepBeyond(FieldKind, u32),
    /// The days that are missing from some months.
    ShortMonths(Vec<u32>),
    /// The weekdays meant, and what the other dialect would read, if it reads it at all.
    WeekdayNumber {
        here: String,
        other: Numbering,
        there: Option<String>,
    },
    /// Whether either is enough.
    BothDays(bool),
    Gap {
        /// The civil time that is lost, and where the clock is set, RFC 3339.
        lost: String,
        until: String,
        zone: String,
        effect: GapEffect,
    },
    Overlap {
        /// The civil time that comes twice.
        time: String,
        zone: String,
        twice: bool,
    },
}

/// What becomes of a time in a gap.
#[derive(Clone, Copy)]
pub(super) enum GapEffect {
    /// It fires at the end of the gap.
    Moved,
    /// It is skipped, and recorded.
    Skipped,
    /// An interval has nothing there.
    Nothing,
}

/// How far ahead changes of the clock are looked for.
const AHEAD: i64 = 400 * DAY;

impl Fact {
    pub(super) fn code(&self) -> LintCode {
        match self {
            Self::Never(_) => LintCode::NeverFires,
            Self::Ended(_) => LintCode::Ended,
            Self::UnevenStep(..) => LintCode::UnevenStep,
            Self::StepBeyond(..) => LintCode::StepBeyondField,
            Self::ShortMonths(_) => LintCode::ShortMonths,
            Self::WeekdayNumber { .. } => LintCode::WeekdayNumber,
            Self::BothDays(_) => LintCode::BothDayFields,
            Self::Gap { .. } => LintCode::GapAhead,
            Self::Overlap { .. } => LintCode::OverlapAhead,
        }
    }
}

/// Everything odd about an expression.
pub(super) fn facts(ast: &Ast, cron: &Cron, schedule: &Schedule, now_ms: i64) -> Vec<Fact> {
    let mut facts = Vec::new();
    if cron.never_fires() {
        let date = (cron.days.count_ones() == 1 && cron.months.count_ones() == 1)
            .then(|| (cron.days.trailing_zeros(), cron.months.trailing_zeros()))
            .filter(|_| cron.weekdays == ALL_WEEKDAYS && cron.years().is_none());
        facts.push(Fact::Never(date));
        return facts;
    }
    if has_ended(schedule, now_ms) {
        facts.push(ended(schedule, now_ms));
    }
    for field in [&ast.second, &ast.minute, &ast.hour, &ast.day, &ast.month] {
        facts.extend(step(field));
    }
    let late: Vec<u32> = values(&ast.day).collect();
    if !late.is_empty() && late.iter().all(|&day| day > 28) && !cron.either_day {
        facts.push(Fact::ShortMonths(late));
    }
    facts.extend(weekday_number(ast));
    if !ast.day.is_open() && !ast.weekday.is_open() {
        facts.push(Fact::BothDays(cron.either_day));
    }
    clock(cron, schedule, now_ms, &mut facts);
    facts
}

/// Whether a schedule on the time line has no fire after an instant.
pub(super) fn has_ended(schedule: &Schedule, now_ms: i64) -> bool {
    schedule.is_on_the_time_line() && schedule.next_fire(now_ms).is_none()
}

/// The fact that it has ended.
pub(super) fn ended(schedule: &Schedule, now_ms: i64) -> Fact {
    Fact::Ended(
        schedule
            .previous(now_ms.saturating_add(1))
            .map(|last| schedule.zone().rfc3339(last.at_ms / 1_000)),
    )
}

fn values(day: &Field) -> impl Iterator<Item = u32> + '_ {
    let only_values = day
        .items
        .iter()
        .all(|item| matches!(item, Item::Value(_) | Item::Range(..)));
    day.items
        .iter()
        .filter(move |_| only_values)
        .flat_map(|&item| day.values(item))
}

/// What is odd about the steps of a field.
fn step(field: &Field) -> Option<Fact> {
    let (kind, cycle) = (field.limits.kind, field.limits.cycle);
    field.items.iter().find_map(|&item| {
        let (step, room) = match item {
            Item::AllStep(step) => (step, cycle),
            Item::FromStep(from, step) => (step, field.limits.step_end + 1 - from.min(cycle)),
            _ => return None,
        };
        if step >= room && step > 1 {
            return Some(Fact::StepBeyond(kind, step));
        }
        let from_start = matches!(item, Item::AllStep(_)) || matches!(item, Item::FromStep(0, _));
        match kind {
            // The days of a month are 28 to 31: no step divides them all.
            FieldKind::Day if step > 1 => Some(Fact::UnevenStep(kind, step, 0)),
            _ if from_start && !cycle.is_multiple_of(step) => {
                Some(Fact::UnevenStep(kind, step, cycle % step))
            }
            _ => None,
        }
    })
}

fn weekday_number(ast: &Ast) -> Option<Fact> {
    let field = &ast.weekday;
    let text = ast.weekday_source.as_deref()?;
    if !has_weekday_number(text) {
        return None;
    }
    let other = match ast.numbering {
        Numbering::Unix => Numbering::Quartz,
        Numbering::Quartz => Numbering::Unix,
    };
    let limits = super::super::ast::Limits::of(FieldKind::Weekday, other);
    let there = super::super::items::field(limits, 0, text)
        .ok()
        .map(|field| weekday_text(&field));
    Some(Fact::WeekdayNumber {
        here: weekday_text(field),
        other,
        there,
    })
}

/// The next gap and the next overlap that hold one of its times.
fn clock(cron: &Cron, schedule: &Schedule, now_ms: i64, facts: &mut Vec<Fact>) {
    // An interval that ticks at all hours goes evenly through every change.
    if cron.is_interval() && cron.hours.count_ones() == 24 {
        return;
    }
    let zone = schedule.zone();
    let now = now_ms.div_euclid(1_000);
    let (mut gap, mut overlap) = (None, None);
    let mut stretch = zone.stretch(now);
    while stretch.end < now + AHEAD {
        stretch = zone.stretch(stretch.end);
        if stretch.offset > stretch.before {
            gap = gap.or_else(|| gap_fact(cron, schedule, stretch));
        } else {
            overlap = overlap.or_else(|| overlap_fact(cron, schedule, stretch));
        }
    }
    facts.extend(gap);
    facts.extend(overlap);
}

fn gap_fact(cron: &Cron, schedule: &Schedule, stretch: Stretch) -> Option<Fact> {
    let (from, to) = (
        stretch.start + i64::from(stretch.before),
        stretch.start + i64::from(stretch.offset),
    );
    let lost = cron.next_civil(from, &mut Steps::default())?;
    if lost >= to {
        return None;
    }
    let effect = if cron.is_interval() || to - from > MAX_GAP {
        GapEffect::Nothing
    } else if schedule.dst().gap == Gap::Skip {
        GapEffect::Skipped
    } else {
        GapEffect::Moved
    };
    Some(Fact::Gap {
        lost: civil_text(lost),
        until: schedule.zone().rfc3339(stretch.start),
        zone: schedule.zone().name().to_owned(),
        effect,
    })
}

fn overlap_fact(cron: &Cron, schedule: &Schedule, stretch: Stretch) -> Option<Fact> {
    let (from, to) = (
        stretch.start + i64::from(stretch.offset),
        stretch.start + i64::from(stretch.before),
    );
    let time = cron.next_civil(from, &mut Steps::default())?;
    (time < to).then(|| Fact::Overlap {
        time: civil_text(time),
        zone: schedule.zone().name().to_owned(),
        twice: cron.is_interval() || schedule.dst().overlap == Overlap::Twice,
    })
}

/// `2026-03-08 02:30` or, when there are seconds, `2026-03-08 02:30:15`.
fn civil_text(civil: i64) -> String {
    let text = super::super::civil::rfc3339(civil, 0);
    let end = if civil % 60 == 0 { 16 } else { 19 };
    text[..end].replace('T', " ")
}
