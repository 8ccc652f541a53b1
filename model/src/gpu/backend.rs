//! What the policy asks of a GPU, and nothing more: memory, copies, launches, products, all
//! in the order they are asked for.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Dtype, Error, Result};

/// Rows that one product takes together. A library of products may choose another order of
/// additions for another number of rows; asked for the same number always, it gives a row
/// the same bits whatever is computed beside it (I7).
pub(crate) const TILE: usize = 128;

/// Something that computes like a GPU. Calls take effect one after another.
pub(crate) trait Backend: Debug + Send + Sync {
    /// `cuda:N` and the device's model.
    fn name(&self) -> &str;

    /// What decides bits: kernels, type of operands, device model, versions of the libraries.
    fn numeric_class(&self) -> &str;

    /// Of the numbers that products read, and that attention keeps.
    fn dtype(&self) -> Dtype;

    /// Address of `bytes` bytes of any content.
    fn allocate(&self, bytes: usize) -> Result<u64>;

    /// Gives memory back that everything asked for so far may still use.
    fn free(&self, address: u64);

    /// Fills with zeros.
    fn zero(&self, address: u64, bytes: usize) -> Result<()>;

    /// Copies from the processor's memory.
    fn upload(&self, from: &[u8], to: u64) -> Result<()>;

    /// Copies to the processor's memory, once everything asked for before is done.
    fn download(&self, from: u64, to: &mut [u8]) -> Result<()>;

    /// Copies inside the device's memory.
    fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<()>;

    /// Runs a kernel.
    fn launch(&self, launch: &Launch<'_>) -> Result<()>;

    /// Runs a product.
    fn multiply(&self, product: &Product) -> Result<()>;

    /// Writes down what `work` asks for, instead of doing it: everything but copies from and to
    /// the processor's memory, which it may not ask for. What it allocates it frees. Returns the
    /// recording's number.
    fn record(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<u64>;

    /// Does what is recorded.
    fn replay(&self, recording: u64) -> Result<()>;

    /// Gives a recording's memory back.
    fn forget(&self, recording: u64);
}

/// A kernel and what it is run on.
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
    /// The argument's bytes, from the lowest on.
    pub(crate) fn bits(self) -> u64 {
        match self {
            Argument::Pointer(bits) | Argument::Count(bits) => bits,
            Argument::Int(x) => u64::from(x.cast_unsigned()),
            Argument::Float(x) => u64::from(x.to_bits()),
        }
    }
}

/// c = a · b, or added to c; a is `[m, k]`, b `[k, n]`, c `[m, n]`, row-major. a and b hold
/// numbers of [`Backend::dtype`], c holds f32, and so does the sum while it grows. A
/// transposed operand is stored the other way round. From one stored row of b to the next there
/// are `b_stride` numbers.
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

/// What a device's memory may hold.
pub(crate) trait Element {
    /// Bytes of one on a device of this type of operands.
    fn size(dtype: Dtype) -> usize;
}

/// Types that the processor has too, bit by bit.
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

/// A number that products read, and that attention keeps: of the device's [`Dtype`]. There is
/// none of it in the processor's memory.
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

/// What a device had no memory for so far, or cannot do.
#[derive(Debug, Default)]
struct Lacks {
    said: AtomicBool,
    layers: AtomicBool,
    steps: AtomicBool,
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

    /// Says, once, that less is computed at a time from now on.
    pub(crate) fn make_do(&self, error: &Error) {
        if !self.1.said.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "{error}; going on without recorded steps, or with fewer rows, sequences or layers \
                 at once, which takes longer and changes no result"
            );
        }
    }

    /// Training finds no room to keep what layers compute, and never tries to again.
    pub(crate) fn keep_inputs_alone(&self) {
        self.1.layers.store(true, Ordering::Relaxed);
    }

    pub(crate) fn keeps_inputs_alone(&self) -> bool {
        self.1.layers.load(Ordering::Relaxed)
    }

    /// Steps cannot be recorded here, which is said once and never tried again.
    pub(crate) fn keep_no_steps(&self, error: &Error) {
        if !self.1.steps.swap(true, Ordering::Relaxed) {
            tracing::warn!("{error}; going on without recorded steps, which takes longer");
        }
    }

    pub(crate) fn keeps_steps(&self) -> bool {
        !self.1.steps.load(Ordering::Relaxed)
    }

    /// Memory for `length` elements, of any content.
    pub(crate) fn buffer<T: Element>(&self, length: usize) -> Result<Buffer<T>> {
        // An empty allocation has no address of its own.
        let address = self.0.allocate(T::size(self.dtype()) * length.max(1))?;
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
        // Nothing to do is nothing a GPU would start.
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

    /// Records `work`, which neither uploads nor downloads.
    pub(crate) fn record(&self, mut work: impl FnMut() -> Result<()>) -> Result<Recording> {
        let number = self.0.record(&mut work)?;
        Ok(Recording {
            gpu: self.clone(),
            number,
        })
    }
}

/// Work that a device does again and again, at the cost of asking once. The memory it was
/// recorded with is to be there whenever it is.
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
    /// Puts as many elements in the place of those it has.
    pub(crate) fn refill(&self, elements: &[T]) -> Result<()> {
        assert_eq!(elements.len(), self.length, "a refill is as long");
        // SAFETY: a `Plain` type has no padding, so all its bytes are there to be read.
        let bytes =
            unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) };
        self.gpu.0.upload(bytes, self.address)
    }

    /// The first `length` elements.
    pub(crate) fn download(&self, length: usize) -> Result<Vec<T>> {
        let mut elements = vec![T::default(); length.min(self.length)];
        // SAFETY: any bytes are a `Plain` type's.
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

    /// To one of its elements.
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

    /// Another buffer with the same content.
    pub(crate) fn duplicate(&self) -> Result<Self> {
        let copy = self.gpu.buffer(self.length)?;
        copy.set(self, (0, 0), self.length)?;
        Ok(copy)
    }

    /// Copies `count` elements of another buffer, from place `from` on, to place `to`.
    pub(crate) fn set(&self, other: &Self, (from, to): (usize, usize), count: usize) -> Result<()> {
        let (from, to) = (other.address_at(from), self.address_at(to));
        self.gpu.0.copy(from, to, self.bytes(count))
    }
}

impl Buffer {
    /// The same memory as operands, where these are f32 too.
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
