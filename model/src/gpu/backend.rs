//! The operations of a GPU that the policy needs: memory, copies, launches and
//! products, executed in the order of the calls.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::{Dtype, Error, Result};

/// Rows of every product of a forward pass. A library may choose a different order of
/// additions for a different number of rows; with one fixed number, a row gets the same bits
/// whatever is computed beside it (I7).
pub(crate) const TILE: usize = 128;

/// A device that computes like a GPU. Calls take effect one after another.
pub(crate) trait Backend: Debug + Send + Sync {
    /// `cuda:N` and the device's model.
    fn name(&self) -> &str;

    /// Identifies all that decides bits: kernels, type of operands, device model, library versions.
    fn numeric_class(&self) -> &str;

    /// The type of products' operands, and of cached keys and values.
    fn dtype(&self) -> Dtype;

    /// Allocates `bytes` uninitialised bytes; returns their address.
    fn allocate(&self, bytes: usize) -> Result<u64>;

    /// Frees memory after all work called for so far, which may still use it.
    fn free(&self, address: u64);

    /// Bytes that are free, once freed memory that is kept is given back.
    fn free_bytes(&self) -> Result<usize>;

    /// The most bytes that were allocated at a time since this was last asked.
    fn take_peak(&self) -> Result<usize>;

    /// Fills with zeros.
    fn zero(&self, address: u64, bytes: usize) -> Result<()>;

    /// Copies from host memory.
    fn upload(&self, from: &[u8], to: u64) -> Result<()>;

    /// Copies to host memory, once all earlier work is done.
    fn download(&self, from: u64, to: &mut [u8]) -> Result<()>;

    /// Copies inside the device's memory.
    fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<()>;

    /// Runs a kernel.
    fn launch(&self, launch: &Launch<'_>) -> Result<()>;

    /// Runs a matrix product.
    fn multiply(&self, product: &Product) -> Result<()>;

    /// Records the calls that `work` makes instead of executing them. `work` must not copy from
    /// or to host memory, and must free all that it allocates. Returns the recording's number.
    fn record(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<u64>;

    /// Executes a recording.
    fn replay(&self, recording: u64) -> Result<()>;

    /// Frees a recording.
    fn forget(&self, recording: u64);
}

/// A launch of a kernel.
#[derive(Debug)]
pub(crate) struct Launch<'a> {
    pub(crate) kernel: &'static str,
    /// Blocks along x and y.
    pub(crate) grid: (usize, usize),
    /// Threads per block, a power of two.
    pub(crate) block: u32,
    /// Dynamic shared memory, in f32 numbers.
    pub(crate) shared: usize,
    pub(crate) arguments: &'a [Argument],
}

/// An argument of a kernel, by its type there.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Argument {
    /// A pointer.
    Pointer(u64),
    /// `int`
    Int(i32),
    /// `float`
    Float(f32),
    /// `unsigned long long`
    Count(u64),
}

impl Argument {
    /// The argument's bytes, starting with the lowest.
    pub(crate) fn bits(self) -> u64 {
        match self {
            Argument::Pointer(bits) | Argument::Count(bits) => bits,
            Argument::Int(x) => u64::from(x.cast_unsigned()),
            Argument::Float(x) => u64::from(x.to_bits()),
        }
    }
}

/// c = a · b, or c += a · b; a is `[m, k]`, b `[k, n]`, c `[m, n]`, row-major. a and b hold
/// elements of [`Backend::dtype`]; c and the sums are f32. A transposed operand is stored
/// transposed. `b_stride` is the number of elements between the starts of two stored rows of b.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Product {
    pub(crate) a: u64,
    pub(crate) b: u64,
    pub(crate) c: u64,
    pub(crate) m: usize,
    pub(crate) k: usize,
    pub(crate) n: usize,
    pub(crate) a_transposed: bool,
    pub(crate) b_transposed: bool,
    pub(crate) b_stride: usize,
    pub(crate) accumulate: bool,
}

/// A type of elements in a device's memory.
pub(crate) trait Element {
    /// Bytes of an element on a device with this type of operands.
    fn size(dtype: Dtype) -> usize;
}

/// Types with the same bits in host memory.
pub(crate) trait Plain: Copy + Default {}
impl Plain for f32 {}
impl Plain for f64 {}
impl Plain for u32 {}
impl Plain for u64 {}

impl<T: Plain> Element for T {
    fn size(_: Dtype) -> usize {
        size_of::<T>()
    }
}

/// An operand of a product, or a cached key or value, of the device's [`Dtype`]. It exists in
/// a device's memory only.
#[derive(Debug)]
pub(crate) enum Operand {}

impl Element for Operand {
    fn size(dtype: Dtype) -> usize {
        match dtype {
            Dtype::F32 => size_of::<f32>(),
            Dtype::Bf16 => size_of::<u16>(),
        }
    }
}

/// A device, shared by everything that lives in its memory.
#[derive(Debug, Clone)]
pub(crate) struct Gpu(Arc<dyn Backend>, Arc<Lacks>);

/// What a device had no memory for so far, or does not support; and what may leave its memory.
#[derive(Debug, Default)]
struct Lacks {
    said: AtomicBool,
    layers: AtomicBool,
    steps: AtomicBool,
    /// While steps are recorded nothing leaves.
    recording: AtomicBool,
    idle: Mutex<Vec<Weak<dyn Idle>>>,
}

/// What is on a device, and in host memory too.
pub(crate) trait Idle: Debug + Send + Sync {
    /// Frees its memory on the device if nothing computes with it; says whether it did.
    fn leave(&self) -> bool;
}

impl Gpu {
    #[cfg(any(test, feature = "cuda"))]
    pub(crate) fn new(backend: impl Backend + 'static) -> Self {
        Gpu(Arc::new(backend), Arc::default())
    }

    pub(crate) fn name(&self) -> &str {
        self.0.name()
    }

    pub(crate) fn numeric_class(&self) -> &str {
        self.0.numeric_class()
    }

    pub(crate) fn dtype(&self) -> Dtype {
        self.0.dtype()
    }

    /// Asks something to leave from now on where memory is full.
    pub(crate) fn may_leave<T: Idle + 'static>(&self, idle: &Arc<T>) {
        let weak = Arc::downgrade(idle);
        let mut all = self.1.idle.lock().expect("no thread panics holding this");
        all.retain(|other| other.strong_count() > 0);
        all.push(weak);
    }

    /// Makes all leave that may; says whether any did.
    fn clear_idle(&self) -> bool {
        if self.1.recording.load(Ordering::Relaxed) {
            return false;
        }
        let all = self.1.idle.lock().expect("no thread panics holding this");
        let all: Vec<_> = all.iter().filter_map(Weak::upgrade).collect();
        all.iter().filter(|idle| idle.leave()).count() > 0
    }

    /// Logs once that work is done in smaller portions from now on.
    pub(crate) fn make_do(&self, error: &Error) {
        if !self.1.said.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "{error}; going on without recorded steps, or with fewer rows, sequences or layers \
                 at once, which takes longer and changes no result"
            );
        }
    }

    /// Bytes of its memory that nothing takes.
    pub(crate) fn free_bytes(&self) -> Result<usize> {
        self.0.free_bytes()
    }

    /// As [`Backend::take_peak`].
    pub(crate) fn take_peak(&self) -> Result<usize> {
        self.0.take_peak()
    }

    /// Whether work was ever done in smaller portions for lack of memory.
    pub(crate) fn made_do(&self) -> bool {
        self.1.said.load(Ordering::Relaxed)
    }

    /// Makes training use checkpointing from now on: the activations do not fit.
    pub(crate) fn keep_inputs_alone(&self) {
        self.1.layers.store(true, Ordering::Relaxed);
    }

    pub(crate) fn keeps_inputs_alone(&self) -> bool {
        self.1.layers.load(Ordering::Relaxed)
    }

    /// Disables recording from now on, and logs that once.
    pub(crate) fn keep_no_steps(&self, error: &Error) {
        if !self.1.steps.swap(true, Ordering::Relaxed) {
            tracing::warn!("{error}; going on without recorded steps, which takes longer");
        }
    }

    pub(crate) fn keeps_steps(&self) -> bool {
        !self.1.steps.load(Ordering::Relaxed)
    }

    /// Uninitialised memory for `length` elements.
    pub(crate) fn buffer<T: Element>(&self, length: usize) -> Result<Buffer<T>> {
        // An empty allocation has no address of its own.
        let bytes = T::size(self.dtype()) * length.max(1);
        let address = match self.0.allocate(bytes) {
            Err(error) if error.is_device_full() && self.clear_idle() => self.0.allocate(bytes)?,
            other => other?,
        };
        Ok(Buffer {
            gpu: self.clone(),
            address,
            length,
            holds: PhantomData,
        })
    }

    pub(crate) fn zeros<T: Element>(&self, length: usize) -> Result<Buffer<T>> {
        let buffer = self.buffer(length)?;
        self.0
            .zero(buffer.address, T::size(self.dtype()) * length)?;
        Ok(buffer)
    }

    pub(crate) fn upload<T: Plain>(&self, elements: &[T]) -> Result<Buffer<T>> {
        let buffer = self.buffer(elements.len())?;
        buffer.refill(elements)?;
        Ok(buffer)
    }

    pub(crate) fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        // A GPU refuses an empty grid.
        if launch.grid.0 == 0 || launch.grid.1 == 0 {
            return Ok(());
        }
        self.0.launch(launch)
    }

    pub(crate) fn multiply(&self, product: &Product) -> Result<()> {
        if product.m == 0 || product.n == 0 {
            return Ok(());
        }
        self.0.multiply(product)
    }

    /// Records `work`, which must neither upload nor download.
    pub(crate) fn record(&self, mut work: impl FnMut() -> Result<()>) -> Result<Recording> {
        self.1.recording.store(true, Ordering::Relaxed);
        let recorded = self.0.record(&mut work);
        self.1.recording.store(false, Ordering::Relaxed);
        let number = recorded?;
        Ok(Recording {
            gpu: self.clone(),
            number,
        })
    }
}

/// Recorded work, which a device repeats at the cost of one call. The memory that it was
/// recorded with must outlive it.
#[derive(Debug)]
pub(crate) struct Recording {
    gpu: Gpu,
    number: u64,
}

impl Recording {
    pub(crate) fn replay(&self) -> Result<()> {
        self.gpu.0.replay(self.number)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.gpu.0.forget(self.number);
    }
}

/// Elements in a device's memory, freed when dropped.
#[derive(Debug)]
pub(crate) struct Buffer<T: Element = f32> {
    gpu: Gpu,
    address: u64,
    length: usize,
    holds: PhantomData<T>,
}

impl<T: Plain> Buffer<T> {
    /// Overwrites all elements.
    pub(crate) fn refill(&self, elements: &[T]) -> Result<()> {
        assert_eq!(elements.len(), self.length, "a refill is as long");
        // SAFETY: a `Plain` type has no padding, so all its bytes are initialised.
        let bytes =
            unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) };
        self.gpu.0.upload(bytes, self.address)
    }

    /// The first `length` elements.
    pub(crate) fn download(&self, length: usize) -> Result<Vec<T>> {
        let mut elements = vec![T::default(); length.min(self.length)];
        // SAFETY: any bytes are valid for a `Plain` type.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(
                elements.as_mut_ptr().cast(),
                size_of_val(elements.as_slice()),
            )
        };
        self.gpu.0.download(self.address, bytes)?;
        Ok(elements)
    }
}

impl<T: Element> Buffer<T> {
    pub(crate) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn pointer(&self) -> Argument {
        self.pointer_at(0)
    }

    /// A pointer to one of its elements.
    pub(crate) fn pointer_at(&self, element: usize) -> Argument {
        Argument::Pointer(self.address_at(element))
    }

    pub(crate) fn address_at(&self, element: usize) -> u64 {
        self.address + self.bytes(element) as u64
    }

    /// Bytes of `count` elements.
    pub(crate) fn bytes(&self, count: usize) -> usize {
        T::size(self.gpu.dtype()) * count
    }

    /// Fills the elements from `first` on with zeros.
    pub(crate) fn clear_from(&self, first: usize) -> Result<()> {
        match self.bytes(self.length - first) {
            0 => Ok(()),
            bytes => self.gpu.0.zero(self.address_at(first), bytes),
        }
    }

    /// Another buffer with the same content.
    pub(crate) fn duplicate(&self) -> Result<Self> {
        let copy = self.gpu.buffer(self.length)?;
        copy.set(self, (0, 0), self.length)?;
        Ok(copy)
    }

    /// Copies `count` elements of another buffer, starting at `from`, to position `to`.
    pub(crate) fn set(&self, other: &Self, (from, to): (usize, usize), count: usize) -> Result<()> {
        let (from, to) = (other.address_at(from), self.address_at(to));
        self.gpu.0.copy(from, to, self.bytes(count))
    }
}

impl Buffer {
    /// The same memory as operands, on a device whose operands are f32.
    pub(super) fn into_operands(self) -> Buffer<Operand> {
        debug_assert_eq!(self.gpu.dtype(), Dtype::F32);
        let this = std::mem::ManuallyDrop::new(self);
        Buffer {
            // SAFETY: `this` is not dropped, so the handle is moved out of it once.
            gpu: unsafe { std::ptr::read(&raw const this.gpu) },
            address: this.address,
            length: this.length,
            holds: PhantomData,
        }
    }
}

impl<T: Element> Drop for Buffer<T> {
    fn drop(&mut self) {
        self.gpu.0.free(self.address);
    }
}
