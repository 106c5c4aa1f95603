//! The deterministic simulation: the product's own code, under virtual time and every fault that
//! has a name, from one seed. See `docs/simulation.md`.

pub mod ablation;
pub mod boots;
pub mod breadth;
pub mod campaign;
pub mod chains;
pub mod chaos;
pub mod clock;
pub mod coverage;
pub mod crew;
pub mod divided;
pub mod executor;
pub mod faults;
pub mod fingerprint;
pub mod late_writes;
pub mod ledger;
pub mod naive;
pub mod operator;
pub mod overlaps;
pub mod rng;
pub mod saves;
pub mod scenario;
pub mod schedule;
pub mod spool;
pub mod tap;
pub mod told;
pub mod wire;
pub mod wire_watch;
pub mod workload;
pub mod world;
