//! Next-fire and parsing beside `cron` and `croner`: `cargo bench -p punctual-bench`.
#![allow(missing_docs, reason = "criterion's macros write undocumented items")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use punctual_bench::{AFTER_MS, EXPRESSIONS, LIBRARIES, Reader};

/// One query: the next fire after an instant.
fn next(criterion: &mut Criterion) {
    for zone in ["UTC", "America/New_York"] {
        for expression in &EXPRESSIONS {
            let mut group = criterion.benchmark_group(format!("next {zone} {}", expression.ours));
            for library in LIBRARIES {
                if let Some(reader) = Reader::new(library, expression, zone) {
                    group.bench_function(library, |bencher| {
                        bencher.iter(|| reader.next(black_box(AFTER_MS)));
                    });
                }
            }
        }
    }
}

/// Reading an expression.
fn parse(criterion: &mut Criterion) {
    for expression in &EXPRESSIONS {
        let mut group = criterion.benchmark_group(format!("parse {}", expression.ours));
        for library in LIBRARIES {
            if Reader::new(library, expression, "UTC").is_some() {
                group.bench_function(library, |bencher| {
                    bencher.iter(|| Reader::new(library, black_box(expression), "UTC"));
                });
            }
        }
    }
}

criterion_group!(benches, next, parse);
criterion_main!(benches);
