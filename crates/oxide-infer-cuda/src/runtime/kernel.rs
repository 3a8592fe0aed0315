use super::completion::Lease;
use super::context::Context;
use super::memory::{DeviceMemory, Span};
use super::status::StatusWord;
use super::stream::Stream;
use crate::driver::{CudaError, LaunchShape, RawFunction, RawModule, TensorMap, TensorMapRecipe};
use std::ffi::{CString, c_void};
use std::sync::Arc;

/// Most parameters a kernel may have.
pub const MAX_PARAMETERS: usize = 48;

/// Most bytes of a number that a kernel takes by value.
const NUMBER_BYTES: usize = 8;

/// Code on a device. Unloaded with the last kernel, bound launch and lease on it.
#[derive(Clone)]
pub struct Module {
    inner: Arc<ModuleInner>,
}

struct ModuleInner {
    context: Context,
    raw: RawModule,
}

/// An entry point of a module, ready to be bound to operands.
#[derive(Clone)]
pub struct Kernel {
    module: Module,
    function: RawFunction,
}

/// Why a kernel cannot be made or bound.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// The symbol cannot be looked up.
    #[error("{symbol:?} is not a symbol: it holds a zero byte")]
    Symbol {
        /// The name.
        symbol: String,
    },
    /// Too many parameters.
    #[error("{count} parameters; at most {MAX_PARAMETERS} are supported")]
    TooManyParameters {
        /// How many.
        count: usize,
    },
    /// A number is too wide.
    #[error("parameter {index} is a number of {bytes} bytes; at most {NUMBER_BYTES} are supported")]
    WideNumber {
        /// Index of the parameter.
        index: usize,
        /// Its bytes.
        bytes: usize,
    },
    /// A launch dimension is zero.
    #[error("the launch has an empty {what}: {value:?}")]
    EmptyShape {
        /// Grid, block or cluster.
        what: &'static str,
        /// Its dimensions.
        value: [u32; 3],
    },
    /// The grid is not made of whole clusters.
    #[error("a grid of {grid:?} blocks is not a multiple of clusters of {cluster:?}")]
    PartialCluster {
        /// Blocks.
        grid: [u32; 3],
        /// Blocks in a cluster.
        cluster: [u32; 3],
    },
    /// Two operands share memory of which one is written.
    #[error("operands {written} and {other} share memory, and the first is written")]
    Alias {
        /// Index of the parameter that is written.
        written: usize,
        /// Index of the other.
        other: usize,
    },
    /// An operand is of another context.
    #[error("operand {index} belongs to another context than the kernel")]
    OtherContext {
        /// Index of the parameter.
        index: usize,
    },
    /// A driver call failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// How a kernel uses the memory of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads only.
    Read,
    /// Writes, and may read.
    Write,
    /// Writes a span that it may share with other operands of the same launch, by contract (an in-place residual).
    Shared,
}

/// One argument of a launch, in the order of the kernel's parameters.
#[derive(Clone, Copy)]
pub enum Argument<'a> {
    /// A region's address.
    Region(Span<'a>, Access),
    /// A region through a tensor map.
    TensorMap(Span<'a>, Access, TensorMapRecipe<'a>),
    /// The launch's status word.
    Status(&'a StatusWord),
    /// A null pointer, where the kernel allows one.
    Null,
    /// A number of at most 8 bytes, as it lies in memory.
    Number(&'a [u8]),
    /// A 32-bit float.
    F32(f32),
}

/// A kernel with its shape and arguments fixed, and with leases on all that they name. Enqueued many times; each time
/// costs one driver call and no allocation.
pub struct BoundLaunch {
    bound: Arc<Bound>,
    status: Option<StatusWord>,
}

struct Bound {
    kernel: Kernel,
    shape: LaunchShape,
    /// One per parameter.
    arguments: Box<[Slot]>,
    /// Keeps the operands' memory; never read.
    _memory: Box<[DeviceMemory]>,
}

/// What a parameter takes by value. A model has tens of thousands, of which few are tensor maps, so those lie apart.
enum Slot {
    /// A number or an address, as it lies in memory.
    Word(Word),
    Map(Box<TensorMap>),
}

/// Aligned for every number that a kernel takes.
#[repr(C, align(8))]
struct Word([u8; NUMBER_BYTES]);

impl Slot {
    fn word(bytes: &[u8]) -> Self {
        let mut word = [0; NUMBER_BYTES];
        // `bind` has refused longer numbers.
        word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        Self::Word(Word(word))
    }

    /// What the driver copies the parameter from.
    fn value(&self) -> *mut c_void {
        match self {
            Self::Word(word) => std::ptr::from_ref(word).cast_mut().cast(),
            Self::Map(map) => std::ptr::from_ref::<TensorMap>(map).cast_mut().cast(),
        }
    }
}

impl Module {
    /// Loads code that has been verified (see the artifact registry).
    ///
    /// # Errors
    ///
    /// The driver refuses the image, or the context is poisoned.
    pub fn load(context: &Context, image: &[u8]) -> Result<Self, CudaError> {
        // SAFETY: the driver copies the image; the module is unloaded in `drop`.
        let raw = context.call(|driver| unsafe { driver.module_load(image) })?;
        Ok(Self { inner: Arc::new(ModuleInner { context: context.clone(), raw }) })
    }

    /// Looks up an entry point and allows it the dynamic shared memory that its launches use.
    ///
    /// # Errors
    ///
    /// No such symbol, more shared memory than the device has, or a poisoned context.
    pub fn kernel(&self, symbol: &str, shared_bytes: u32) -> Result<Kernel, KernelError> {
        let name = CString::new(symbol).map_err(|_| KernelError::Symbol { symbol: symbol.to_owned() })?;
        let context = &self.inner.context;
        // SAFETY: the module is loaded, and stays so with the kernel.
        let function = context.call(|driver| unsafe { driver.module_function(self.inner.raw, &name) })?;
        // Without it static and dynamic memory together may have 48 KiB.
        if shared_bytes > 0 {
            // SAFETY: the function was just looked up.
            context.call(|driver| unsafe { driver.function_allow_shared(function, shared_bytes) })?;
        }
        Ok(Kernel { module: self.clone(), function })
    }
}

impl Drop for ModuleInner {
    fn drop(&mut self) {
        // SAFETY: loaded once, unloaded once; no lease is left. On a lost context it goes with the context.
        let _ = self.context.call(|driver| unsafe { driver.module_unload(self.raw) });
    }
}

impl Kernel {
    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        &self.module.inner.context
    }

    /// Fixes the shape and the arguments of a launch.
    ///
    /// # Errors
    ///
    /// An impossible shape, operands that alias or lie in another context, or a tensor map that the driver refuses.
    ///
    /// # Safety
    ///
    /// The arguments are what the kernel's parameters mean, in number, order, type and extent, and the kernel stays
    /// inside them for any content. Plans uphold it by taking kernel and parameters from one verified manifest.
    pub unsafe fn bind(
        &self,
        shape: LaunchShape,
        arguments: &[Argument<'_>],
    ) -> Result<BoundLaunch, KernelError> {
        check_shape(&shape)?;
        if arguments.len() > MAX_PARAMETERS {
            return Err(KernelError::TooManyParameters { count: arguments.len() });
        }
        check_numbers(arguments)?;
        check_memory(self.context(), arguments)?;
        let slots = arguments.iter().map(|argument| self.slot(argument)).collect::<Result<_, _>>()?;
        let memory = arguments.iter().filter_map(Argument::span).map(|(span, _)| span.memory.clone());
        let status = arguments.iter().find_map(|argument| match argument {
            Argument::Status(status) => Some((*status).clone()),
            _ => None,
        });
        let bound = Bound { kernel: self.clone(), shape, arguments: slots, _memory: memory.collect() };
        Ok(BoundLaunch { bound: Arc::new(bound), status })
    }

    fn slot(&self, argument: &Argument<'_>) -> Result<Slot, CudaError> {
        Ok(match argument {
            Argument::Region(span, _) => Slot::word(&span.ptr().0.to_ne_bytes()),
            Argument::TensorMap(span, _, recipe) => {
                // SAFETY: the span is live and leased by the launch that holds the map.
                let map =
                    self.context().call(|driver| unsafe { driver.encode_tensor_map(span.ptr(), recipe) })?;
                Slot::Map(Box::new(map))
            }
            Argument::Status(status) => Slot::word(&status.ptr().0.to_ne_bytes()),
            Argument::Null => Slot::word(&[]),
            Argument::Number(bytes) => Slot::word(bytes),
            Argument::F32(value) => Slot::word(&value.to_ne_bytes()),
        })
    }
}

impl<'a> Argument<'a> {
    fn span(&self) -> Option<(Span<'a>, Access)> {
        match self {
            Self::Region(span, access) | Self::TensorMap(span, access, _) => Some((*span, *access)),
            _ => None,
        }
    }
}

impl BoundLaunch {
    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        self.bound.kernel.context()
    }

    /// The shape it was bound to.
    pub fn shape(&self) -> LaunchShape {
        self.bound.shape
    }

    pub(super) fn status(&self) -> Option<&StatusWord> {
        self.status.as_ref()
    }

    pub(super) fn lease(&self) -> Lease {
        self.bound.clone()
    }

    pub(super) fn enqueue(&self, stream: &Stream) -> Result<(), CudaError> {
        let bound = &*self.bound;
        let mut pointers = [std::ptr::null_mut::<c_void>(); MAX_PARAMETERS];
        for (pointer, slot) in pointers.iter_mut().zip(&*bound.arguments) {
            *pointer = slot.value();
        }
        let pointers = &mut pointers[..bound.arguments.len()];
        // SAFETY: `bind` fixed as many arguments as the kernel has parameters; the driver reads them before it returns,
        // and the memory they name is leased by the scope that enqueues.
        self.context().call(|driver| unsafe {
            driver.launch(bound.kernel.function, &bound.shape, pointers, stream.raw())
        })
    }
}

fn check_shape(shape: &LaunchShape) -> Result<(), KernelError> {
    let named = [("grid", Some(shape.grid)), ("block", Some(shape.block)), ("cluster", shape.cluster)];
    for (what, value) in named {
        if let Some(value) = value.filter(|value| value.contains(&0)) {
            return Err(KernelError::EmptyShape { what, value });
        }
    }
    match shape.cluster {
        Some(cluster) if shape.grid.iter().zip(cluster).any(|(grid, c)| !grid.is_multiple_of(c)) => {
            Err(KernelError::PartialCluster { grid: shape.grid, cluster })
        }
        _ => Ok(()),
    }
}

fn check_numbers(arguments: &[Argument<'_>]) -> Result<(), KernelError> {
    let width = |argument: &Argument<'_>| match argument {
        Argument::Number(bytes) => bytes.len(),
        _ => 0,
    };
    match arguments.iter().map(width).enumerate().find(|(_, bytes)| *bytes > NUMBER_BYTES) {
        None => Ok(()),
        Some((index, bytes)) => Err(KernelError::WideNumber { index, bytes }),
    }
}

fn check_memory(context: &Context, arguments: &[Argument<'_>]) -> Result<(), KernelError> {
    let spans = || arguments.iter().enumerate().filter_map(|(i, a)| a.span().map(|s| (i, s.0, s.1)));
    for (index, span, access) in spans() {
        if !span.memory.context().same(context) {
            return Err(KernelError::OtherContext { index });
        }
        let alias = spans()
            .find(|(other, another, _)| access == Access::Write && *other != index && span.overlaps(another));
        if let Some((other, ..)) = alias {
            return Err(KernelError::Alias { written: index, other });
        }
    }
    Ok(())
}
