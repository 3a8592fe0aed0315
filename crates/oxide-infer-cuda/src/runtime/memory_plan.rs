use super::context::Context;
use super::memory::DeviceMemory;
use crate::driver::CudaError;
use std::fmt;

/// What a model needs of device memory, settled before anything is allocated.
///
/// Fixed parts (weights) must fit; counted parts (KV pages, sequences) are what a plan can have fewer of. A plan that
/// does not fit says by how much, and for every counted part how many would.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    parts: Vec<Part>,
}

/// One part of a [`MemoryPlan`]: `count` units of `unit_bytes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// What it is, in the plural: "weights", "KV pages".
    pub name: &'static str,
    /// Bytes of one unit.
    pub unit_bytes: u64,
    /// Units.
    pub count: u64,
    /// The least count that makes sense; equal to `count` for a fixed part.
    pub least: u64,
}

/// Why a [`MemoryPlan`] cannot be allocated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryPlanError {
    /// It needs more than there is.
    #[error(
        "the plan needs {needed} bytes of device memory and {available} are free, {short} too few ({parts}); {remedies}"
    )]
    DoesNotFit {
        /// Bytes of all parts.
        needed: u64,
        /// Bytes that may be used.
        available: u64,
        /// What is missing.
        short: u64,
        /// The parts, for the message.
        parts: Listing<Part>,
        /// Every single change that would make it fit.
        remedies: Remedies,
    },
    /// Its size is not a number that a machine can have.
    #[error("{count} {name} of {unit_bytes} bytes are more bytes than can be counted")]
    Overflow {
        /// The part.
        name: &'static str,
        /// Its units.
        count: u64,
        /// Bytes of one.
        unit_bytes: u64,
    },
    /// The driver does not say how much is free.
    #[error("asking for the free device memory: {0}")]
    FreeMemory(CudaError),
    /// The driver refuses what should have fit.
    #[error("allocating {bytes} bytes for {name}: {source}")]
    Allocate {
        /// The part.
        name: &'static str,
        /// Its bytes.
        bytes: u64,
        /// The driver's answer.
        source: CudaError,
    },
}

/// Changes that would make a plan fit, each by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remedies(pub Vec<Remedy>);

/// A smaller count that would make a plan fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remedy {
    /// The part to have fewer of.
    pub name: &'static str,
    /// How many would fit.
    pub count: u64,
    /// How many were asked for.
    pub instead_of: u64,
}

/// A list with commas between its items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing<T>(pub Vec<T>);

impl MemoryPlan {
    /// Adds a part that cannot be smaller.
    #[must_use]
    pub fn fixed(self, name: &'static str, bytes: u64) -> Self {
        self.part(Part { name, unit_bytes: bytes, count: 1, least: 1 })
    }

    /// Adds a part that can have fewer units, down to `least`.
    #[must_use]
    pub fn counted(self, name: &'static str, unit_bytes: u64, count: u64, least: u64) -> Self {
        self.part(Part { name, unit_bytes, count, least: least.min(count) })
    }

    fn part(mut self, part: Part) -> Self {
        self.parts.push(part);
        self
    }

    /// Bytes of all parts.
    ///
    /// # Errors
    ///
    /// [`MemoryPlanError::Overflow`].
    pub fn bytes(&self) -> Result<u64, MemoryPlanError> {
        self.parts.iter().try_fold(0_u64, |sum, part| {
            let Part { name, unit_bytes, count, .. } = *part;
            let bytes = unit_bytes.checked_mul(count).and_then(|bytes| sum.checked_add(bytes));
            bytes.ok_or(MemoryPlanError::Overflow { name, count, unit_bytes })
        })
    }

    /// Whether it fits `available` bytes.
    ///
    /// # Errors
    ///
    /// [`MemoryPlanError::DoesNotFit`] with what would fit, or [`MemoryPlanError::Overflow`].
    pub fn check(&self, available: u64) -> Result<(), MemoryPlanError> {
        let needed = self.bytes()?;
        let Some(short) = needed.checked_sub(available).filter(|short| *short > 0) else {
            return Ok(());
        };
        let remedies = self.parts.iter().filter_map(|part| part.remedy(short)).collect();
        let parts = Listing(self.parts.clone());
        Err(MemoryPlanError::DoesNotFit { needed, available, short, parts, remedies: Remedies(remedies) })
    }

    /// Checks the plan against the device's free memory and allocates every part, in order.
    ///
    /// # Errors
    ///
    /// It does not fit (nothing is allocated then), or the driver refuses a part.
    pub fn allocate(&self, context: &Context) -> Result<Vec<DeviceMemory>, MemoryPlanError> {
        let name = "the plan";
        let info =
            context.memory_info().map_err(|source| MemoryPlanError::Allocate { name, bytes: 0, source })?;
        self.check(info.free)?;
        self.parts.iter().map(|part| part.allocate(context)).collect()
    }
}

impl Part {
    /// A count that saves `short` bytes, if this part alone can.
    fn remedy(&self, short: u64) -> Option<Remedy> {
        let fewer = short.div_ceil(self.unit_bytes.max(1));
        let count = self.count.checked_sub(fewer).filter(|count| *count >= self.least)?;
        Some(Remedy { name: self.name, count, instead_of: self.count })
    }

    fn allocate(&self, context: &Context) -> Result<DeviceMemory, MemoryPlanError> {
        let Self { name, unit_bytes, count, .. } = *self;
        let overflow = MemoryPlanError::Overflow { name, count, unit_bytes };
        let bytes = unit_bytes.checked_mul(count).ok_or(overflow)?;
        let size =
            usize::try_from(bytes).map_err(|_| MemoryPlanError::Overflow { name, count, unit_bytes })?;
        DeviceMemory::allocate(context, size).map_err(|source| MemoryPlanError::Allocate {
            name,
            bytes,
            source,
        })
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, unit_bytes, count, .. } = self;
        match count {
            1 => write!(f, "{name}: {unit_bytes}"),
            _ => write!(f, "{count} {name} of {unit_bytes}"),
        }
    }
}

impl<T: fmt::Display> fmt::Display for Listing<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, item) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{item}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Remedies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("nothing in it can be made small enough");
        }
        f.write_str("it would fit with ")?;
        for (index, Remedy { name, count, instead_of }) in self.0.iter().enumerate() {
            let or = if index == 0 { "" } else { ", or with " };
            write!(f, "{or}{count} {name} instead of {instead_of}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::simulated::SimulatedDriver;

    fn plan() -> MemoryPlan {
        MemoryPlan::default().fixed("weights", 600).counted("KV pages", 10, 50, 4).counted(
            "sequences",
            7,
            20,
            1,
        )
    }

    #[test]
    fn a_plan_that_fits_to_the_byte_is_accepted() {
        assert_eq!(plan().bytes(), Ok(600 + 500 + 140));
        assert_eq!(plan().check(1240), Ok(()));
    }

    #[test]
    fn a_plan_that_does_not_fit_says_by_how_much_and_what_would() {
        let message = plan().check(1100).unwrap_err().to_string();
        assert_eq!(
            message,
            "the plan needs 1240 bytes of device memory and 1100 are free, 140 too few (weights: 600, 50 KV pages of \
             10, 20 sequences of 7); it would fit with 36 KV pages instead of 50"
        );
        let message = plan().check(1200).unwrap_err().to_string();
        assert!(
            message
                .ends_with("it would fit with 46 KV pages instead of 50, or with 14 sequences instead of 20")
        );
    }

    #[test]
    fn what_a_remedy_names_does_fit() {
        for available in 641..1240 {
            let Err(MemoryPlanError::DoesNotFit { remedies, .. }) = plan().check(available) else { panic!() };
            for remedy in remedies.0 {
                let mut plan = plan();
                plan.parts.iter_mut().filter(|p| p.name == remedy.name).for_each(|p| p.count = remedy.count);
                assert_eq!(plan.check(available), Ok(()), "{available}: {remedy:?}");
            }
        }
    }

    #[test]
    fn a_hopeless_plan_says_so() {
        let message = plan().check(100).unwrap_err().to_string();
        assert!(message.ends_with("nothing in it can be made small enough"), "{message}");
    }

    #[test]
    fn sizes_past_counting_are_an_error() {
        let plan = MemoryPlan::default().counted("KV pages", u64::MAX / 2, 3, 1);
        assert!(matches!(plan.bytes(), Err(MemoryPlanError::Overflow { name: "KV pages", count: 3, .. })));
    }

    #[test]
    fn nothing_is_allocated_for_a_plan_that_does_not_fit() {
        let driver = SimulatedDriver::new();
        let context = Context::primary_on(driver.clone(), 0).unwrap();
        let huge = MemoryPlan::default().fixed("weights", 64).counted("KV pages", 1 << 20, 4096, 1);
        assert!(matches!(huge.allocate(&context), Err(MemoryPlanError::DoesNotFit { .. })));
        assert_eq!(driver.live_allocations(), 0);
        let parts = plan().allocate(&context).unwrap();
        assert_eq!(parts.iter().map(DeviceMemory::bytes).collect::<Vec<_>>(), [600, 500, 140]);
        drop(parts);
        assert_eq!(driver.live_allocations(), 0);
    }
}
