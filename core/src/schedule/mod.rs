//! Next-fire: a pure function of a definition and an instant.
