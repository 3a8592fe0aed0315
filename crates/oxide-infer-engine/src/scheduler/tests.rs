//! The scheduler against the scripted executor, with no thread: what each step holds, and what no sequence of events may
//! break.

mod apart;
mod audit;
mod behaviour;
mod harness;
mod interleavings;
