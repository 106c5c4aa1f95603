//! Names in messages: lists of them, and the one that was meant.

/// `a`, `b` and `c`.
pub(super) fn names<'a>(all: impl Iterator<Item = &'a str>) -> String {
    join_names(all, "and")
}

pub(super) fn join_names<'a>(all: impl Iterator<Item = &'a str>, word: &str) -> String {
    let quoted: Vec<String> = all.map(|name| format!("`{name}`")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} {word} {last}", rest.join(", ")),
        Some((last, _)) => last.clone(),
        None => String::new(),
    }
}

/// The known name that is most like `given`, if one is like it.
pub(super) fn nearest<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if given.chars().count() > 32 {
        return None;
    }
    let plain = |text: &str| text.to_lowercase().replace(['-', '_', ' '], "");
    let given = plain(given);
    known
        .map(|name| (distance(&given, &plain(name)), name))
        .filter(|(distance, name)| *distance <= name.chars().count().div_ceil(3).min(3))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// How many characters to insert, delete, replace or swap with their neighbour (optimal string
/// alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before[j - 2] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut above, row);
    }
    above.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_suggested_when_they_are_near() {
        let known = || crate::jobfile::schema::JOB.iter().map(|(name, _)| *name);
        for (given, near) in [
            ("shedule", Some("schedule")),
            ("timout", Some("timeout")),
            ("catchup", Some("catch_up")),
            ("onLost", Some("on_lost")),
            ("payolad", Some("payload")),
            ("zzzzzz", None),
        ] {
            assert_eq!(nearest(given, known()), near, "{given}");
        }
    }
}
