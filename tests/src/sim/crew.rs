//! Many seeds on all cores. Each is simulated by one thread alone and shares nothing with the
//! others, and results are handed on in the order of their numbers, so that the output does not
//! depend on how many threads there are.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

/// How many threads can run at once here.
#[must_use]
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Does the work of each number below `count` on so many threads; `take` gets the results, lowest
/// number first, on the thread of the caller.
pub fn in_order<T: Send>(
    count: u64,
    threads: usize,
    work: impl Fn(u64) -> T + Sync,
    mut take: impl FnMut(T),
) {
    let next = AtomicU64::new(0);
    let (out, results) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            let (out, next, work) = (out.clone(), &next, &work);
            scope.spawn(move || {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count || out.send((number, work(number))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(out);
        let mut early = BTreeMap::new();
        let mut due = 0;
        for (number, result) in results {
            early.insert(number, result);
            while let Some(result) = early.remove(&due) {
                due += 1;
                take(result);
            }
        }
        // If a thread panicked, the end of the scope panics too: nothing is left out in silence.
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_whatever_the_number_of_threads() {
        for threads in [0, 1, 2, 7] {
            let mut taken = Vec::new();
            // Later numbers are done first.
            let work = |number: u64| {
                std::thread::sleep(std::time::Duration::from_millis(20 - number));
                number * number
            };
            in_order(20, threads, work, |square| taken.push(square));
            let all: Vec<u64> = (0..20).map(|number| number * number).collect();
            assert_eq!(taken, all);
        }
        in_order(0, 2, |_| (), |()| panic!("there is none"));
    }

    #[test]
    #[should_panic(expected = "a scoped thread panicked")]
    fn a_panic_is_not_lost() {
        in_order(4, 2, |number| assert_ne!(number, 2), |()| {});
    }
}
