//! A distributed job scheduler that never misses and never repeats a scheduled fire.

pub mod backend;
pub mod cancel;
pub mod control;
pub mod duration;
pub mod env;
pub mod handler;
pub mod job;
pub mod node;
pub mod recipe;
pub mod model;
pub mod schedule;
