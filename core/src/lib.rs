//! A distributed job scheduler that never misses and never repeats a scheduled fire.

pub mod backend;
pub mod bootstrap;
pub mod cancel;
pub mod clock;
pub mod control;
pub mod drain;
pub mod duration;
pub mod env;
pub mod handler;
pub mod job;
pub mod keys;
pub mod leader;
pub mod model;
pub mod node;
pub mod notify;
pub mod partition;
pub mod plan;
pub mod progress;
pub mod recipe;
pub mod schedule;
pub mod spool;
pub mod time;
pub mod vitals;
pub mod worker;
