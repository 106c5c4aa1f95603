//! A distributed job scheduler that never misses and never repeats a scheduled fire.

pub mod backend;
pub mod duration;
pub mod env;
pub mod model;
pub mod schedule;
