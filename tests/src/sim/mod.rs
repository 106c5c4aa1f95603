//! The deterministic simulation: the product's own code, under virtual time and every fault that
//! has a name, from one seed. See `docs/simulation.md`.

pub mod ablation;
pub mod breadth;
pub mod campaign;
pub mod chaos;
pub mod clock;
pub mod executor;
pub mod faults;
pub mod ledger;
pub mod naive;
pub mod operator;
pub mod rng;
pub mod scenario;
pub mod schedule;
pub mod tap;
pub mod wire;
pub mod wire_watch;
pub mod workload;
pub mod world;
