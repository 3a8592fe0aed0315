//! The artifact registry, without a driver: what it refuses, what it selects, and the launches that come of it.

mod adopted;
mod bundle;
mod geometry;
mod native;
mod registry;
mod select;
