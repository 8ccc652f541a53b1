//! Matrices on a GPU and row-wise operations on them. One function per kernel hides the kernel's
//! grid and shared memory.

use super::backend::{Argument, Buffer, Element, Gpu, Launch, Operand, TILE};
use crate::gpu::list::List;
use crate::{Dtype, Result};

/// Threads per block of the row-wise kernels; it decides the order of their sums.
const BLOCK: u32 = 128;

/// Rows that one thread adds up; the sums of such chunks are added afterwards.
const SUM_ROWS: usize = 64;

/// Numbers whose squares one block adds up.
const SQUARES_RUN: usize = 1 << 16;

/// A row-major matrix with memory for whole tiles of rows, which products read and write. The
/// contents of rows past the last are undefined.
#[derive(Debug)]
pub(crate) struct Matrix<T: Element = f32> {
    numbers: Buffer<T>,
    rows: usize,
    width: usize,
}

/// Rows that products or attention read.
pub(crate) type Operands = Matrix<Operand>;

pub(crate) fn pointers<const N: usize>(buffers: [&Buffer; N]) -> [Argument; N] {
    buffers.map(Buffer::pointer)
}

pub(super) fn int(number: usize) -> Argument {
    Argument::Int(i32::try_from(number).expect("sizes of a model fit"))
}

impl Gpu {
    /// An uninitialised matrix.
    pub(crate) fn matrix<T: Element>(&self, rows: usize, width: usize) -> Result<Matrix<T>> {
        Ok(Matrix {
            numbers: self.buffer(rows.next_multiple_of(TILE) * width)?,
            rows,
            width,
        })
    }

    pub(crate) fn upload_matrix(&self, numbers: &[f32], width: usize) -> Result<Matrix> {
        let rows = numbers.len() / width;
        let mut padded = numbers.to_vec();
        padded.resize(rows.next_multiple_of(TILE) * width, 0.0);
        Ok(Matrix {
            numbers: self.upload(&padded)?,
            rows,
            width,
        })
    }

    /// Launches a kernel with one thread per element.
    pub(crate) fn each(
        &self,
        kernel: &'static str,
        count: usize,
        arguments: &[Argument],
    ) -> Result<()> {
        let with_count = [arguments, &[Argument::Count(count as u64)]].concat();
        self.launch(&Launch {
            kernel,
            grid: (count.div_ceil(BLOCK as usize), 1),
            block: BLOCK,
            shared: 0,
            arguments: &with_count,
        })
    }

    /// Launches a kernel with one block per row.
    pub(crate) fn rows(
        &self,
        kernel: &'static str,
        rows: usize,
        arguments: &[Argument],
    ) -> Result<()> {
        self.launch(&Launch {
            kernel,
            grid: (rows, 1),
            block: BLOCK,
            shared: 0,
            arguments,
        })
    }

    /// matrix\[rows\[i\]\] as row i, by the kernel for these types.
    fn gather<From: Element, To: Element>(
        &self,
        kernel: &'static str,
        matrix: &Buffer<From>,
        rows: List<'_>,
        width: usize,
    ) -> Result<Matrix<To>> {
        let y = self.matrix(rows.length(), width)?;
        let arguments = [matrix.pointer(), rows.pointer(), y.pointer(), int(width)];
        self.rows(kernel, rows.length(), &arguments)?;
        Ok(y)
    }

    /// The rows of an embedding for `ids`.
    pub(crate) fn embed(
        &self,
        embedding: &Buffer<Operand>,
        ids: List<'_>,
        width: usize,
    ) -> Result<Matrix> {
        self.gather("embed", embedding, ids, width)
    }

    /// Uploads numbers, rounded to operands.
    pub(crate) fn upload_operands(&self, numbers: &[f32]) -> Result<Buffer<Operand>> {
        let numbers = self.upload(numbers)?;
        match self.dtype() {
            Dtype::F32 => Ok(numbers.into_operands()),
            Dtype::Bf16 => numbers.operands(),
        }
    }

    /// Σ x² in f64, in an order that depends on the length alone.
    pub(crate) fn sum_of_squares(&self, x: &Buffer) -> Result<f64> {
        let runs = x.length().div_ceil(SQUARES_RUN);
        let sums = self.buffer::<f64>(runs)?;
        let arguments = [
            x.pointer(),
            sums.pointer(),
            Argument::Count(SQUARES_RUN as u64),
            Argument::Count(x.length() as u64),
        ];
        self.rows("sum_of_squares", runs, &arguments)?;
        Ok(sums.download(runs)?.iter().sum())
    }
}

impl<T: Element> Matrix<T> {
    pub(crate) fn gpu(&self) -> &Gpu {
        self.numbers.gpu()
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn width(&self) -> usize {
        self.width
    }

    pub(crate) fn pointer(&self) -> Argument {
        self.numbers.pointer()
    }

    pub(crate) fn address(&self) -> u64 {
        self.numbers.address()
    }

    /// A copy of `rows` rows from `first` on.
    pub(crate) fn part(&self, first: usize, rows: usize) -> Result<Self> {
        let part = self.gpu().matrix(rows, self.width)?;
        part.numbers
            .set(&self.numbers, (first * self.width, 0), rows * self.width)?;
        Ok(part)
    }

    /// Overwrites the rows from `first` on with `part`.
    pub(crate) fn set_part(&self, first: usize, part: &Self) -> Result<()> {
        self.numbers
            .set(&part.numbers, (0, first * self.width), part.count())
    }

    fn count(&self) -> usize {
        self.rows * self.width
    }

    /// Rows with their padding to whole tiles.
    pub(super) fn padded(&self) -> usize {
        self.rows.next_multiple_of(TILE)
    }

    /// Fills the rows past the last with zeros.
    pub(super) fn clear_padding(&self) -> Result<()> {
        self.numbers.clear_from(self.count())
    }

    /// The address of a row.
    pub(super) fn row_address(&self, row: usize) -> u64 {
        self.numbers.address_at(row * self.width)
    }

    /// An uninitialised matrix of the same size.
    fn like<Other: Element>(&self) -> Result<Matrix<Other>> {
        self.gpu().matrix(self.rows, self.width)
    }
}

impl Matrix {
    pub(crate) fn download(&self) -> Result<Vec<f32>> {
        self.numbers.download(self.count())
    }

    pub(crate) fn duplicate(&self) -> Result<Self> {
        Ok(Matrix {
            numbers: self.numbers.duplicate()?,
            ..*self
        })
    }

    /// A rounded copy.
    pub(crate) fn operands(&self) -> Result<Operands> {
        Ok(Matrix {
            numbers: self.numbers.operands()?,
            rows: self.rows,
            width: self.width,
        })
    }

    /// `width` columns from `first` on.
    pub(crate) fn columns(&self, first: usize, width: usize) -> Columns<'_> {
        Columns {
            matrix: self,
            first,
            width,
        }
    }

    /// All columns.
    pub(crate) fn all(&self) -> Columns<'_> {
        self.columns(0, self.width)
    }

    /// RMS norm of every row, for a product.
    pub(crate) fn norm_operands(&self, weight: &Buffer, eps: f32) -> Result<Operands> {
        self.all().normed("rms_norm", weight, eps)
    }

    /// The derivative of a rotation by the angles of positions, in place.
    pub(crate) fn rotate_back(&mut self, positions: List<'_>, table: &Angles) -> Result<()> {
        let angles = table.arguments(positions);
        let sizes = [int(self.width / (2 * table.half)), int(table.half)];
        let arguments = [&[self.pointer()], angles.as_slice(), &sizes].concat();
        self.gpu().rows("rope_backward", self.rows, &arguments)
    }

    /// silu(gate) · up, where a row is a gate followed by an up of the same width.
    pub(crate) fn swiglu(&self) -> Result<Operands> {
        let y: Operands = self.gpu().matrix(self.rows, self.width / 2)?;
        let arguments = [self.pointer(), y.pointer(), int(y.width)];
        self.gpu().each("swiglu", y.count(), &arguments)?;
        Ok(y)
    }

    /// Derivatives of [`Matrix::swiglu`] by gate and by up.
    pub(crate) fn swiglu_backward(&self, grad: &Matrix) -> Result<[Operands; 2]> {
        let [by_gate, by_up]: [Operands; 2] = [grad.like()?, grad.like()?];
        let pointers = [
            self.pointer(),
            grad.pointer(),
            by_gate.pointer(),
            by_up.pointer(),
        ];
        let arguments = [pointers.as_slice(), &[int(grad.width)]].concat();
        self.gpu()
            .each("swiglu_backward", grad.count(), &arguments)?;
        Ok([by_gate, by_up])
    }

    /// The rows that `rows` names.
    pub(crate) fn select(&self, rows: List<'_>) -> Result<Matrix> {
        let gpu = self.gpu();
        gpu.gather("gather_rows", &self.numbers, rows, self.width)
    }

    /// The inverse of [`Matrix::select`]: rows of `count` that `rows` does not name are zero.
    pub(crate) fn scatter(&self, rows: List<'_>, count: usize) -> Result<Matrix> {
        let matrix = Matrix {
            numbers: self
                .gpu()
                .zeros(count.next_multiple_of(TILE) * self.width)?,
            rows: count,
            width: self.width,
        };
        let (from, to) = (self.pointer(), matrix.pointer());
        let arguments = [from, rows.pointer(), to, int(self.width)];
        self.gpu().rows("scatter_rows", self.rows, &arguments)?;
        Ok(matrix)
    }

    /// self *= factor.
    pub(crate) fn scale(&self, factor: f32) -> Result<()> {
        let arguments = [self.pointer(), Argument::Float(factor)];
        self.gpu().each("scale", self.count(), &arguments)
    }

    /// Sums of the columns.
    pub(crate) fn column_sums(&self) -> Result<Buffer> {
        column_sums(&self.numbers, self.rows, self.width)
    }
}

/// Some columns of a matrix: heads, or all of a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Columns<'a> {
    matrix: &'a Matrix,
    first: usize,
    width: usize,
}

impl Columns<'_> {
    /// Address of the first element.
    pub(crate) fn pointer(self) -> Argument {
        self.matrix.numbers.pointer_at(self.first)
    }

    /// Elements from the start of one row to the next.
    pub(crate) fn stride(self) -> Argument {
        int(self.matrix.width)
    }

    /// RMS norm of every group of `weight.length()` elements.
    pub(crate) fn norm(self, weight: &Buffer, eps: f32) -> Result<Matrix> {
        self.normed("rms_norm_f32", weight, eps)
    }

    fn normed<To: Element>(
        self,
        kernel: &'static str,
        weight: &Buffer,
        eps: f32,
    ) -> Result<Matrix<To>> {
        let y = self.like()?;
        let buffers = [self.pointer(), weight.pointer(), y.pointer()];
        let (heads, sizes) = self.heads(weight, eps);
        let arguments = [buffers.as_slice(), &sizes].concat();
        self.matrix.gpu().rows(kernel, heads, &arguments)?;
        Ok(y)
    }

    /// The derivative of [`Columns::norm`] by the weight; the one by self is written into or
    /// added to `by_x`.
    pub(crate) fn norm_backward(
        self,
        weight: &Buffer,
        grad: &Matrix,
        eps: f32,
        by_x: &mut Matrix,
        accumulate: bool,
    ) -> Result<Buffer> {
        let terms = self.like::<f32>()?;
        let (heads, sizes) = self.heads(weight, eps);
        let buffers = [
            self.pointer(),
            weight.pointer(),
            grad.pointer(),
            by_x.pointer(),
            terms.pointer(),
        ];
        let arguments = [&buffers, sizes.as_slice(), &[int(accumulate.into())]].concat();
        let gpu = self.matrix.gpu();
        gpu.rows("rms_norm_backward", heads, &arguments)?;
        column_sums(&terms.numbers, heads, weight.length())
    }

    /// An uninitialised matrix of the same size.
    pub(crate) fn like<Other: Element>(self) -> Result<Matrix<Other>> {
        self.matrix.gpu().matrix(self.matrix.rows, self.width)
    }

    /// The number of heads as wide as `weight`, and the arguments that describe them to the
    /// kernels.
    fn heads(self, weight: &Buffer, eps: f32) -> (usize, [Argument; 4]) {
        let heads = self.width / weight.length();
        let sizes = [
            int(weight.length()),
            Argument::Float(eps),
            int(heads),
            self.stride(),
        ];
        (self.matrix.rows * heads, sizes)
    }
}

impl Operands {
    /// Downloads the numbers as f32.
    #[cfg(test)]
    pub(crate) fn download(&self) -> Result<Vec<f32>> {
        let gpu = self.gpu();
        let numbers = gpu.buffer::<f32>(self.count())?;
        let arguments = [self.pointer(), numbers.pointer()];
        gpu.each("to_numbers", self.count(), &arguments)?;
        numbers.download(self.count())
    }

    /// The rows that `rows` names.
    pub(crate) fn select(&self, rows: List<'_>) -> Result<Operands> {
        let gpu = self.gpu();
        gpu.gather("gather_operands", &self.numbers, rows, self.width)
    }
}

fn column_sums(x: &Buffer, rows: usize, width: usize) -> Result<Buffer> {
    let chunks = rows.div_ceil(SUM_ROWS);
    let sum = |x: &Buffer, rows: usize, chunk_rows: usize| {
        let chunks = rows.div_ceil(chunk_rows);
        let y = x.gpu().buffer(chunks * width)?;
        let arguments = [
            x.pointer(),
            y.pointer(),
            int(rows),
            int(width),
            int(chunk_rows),
        ];
        x.gpu().launch(&Launch {
            kernel: "column_sums",
            grid: (width.div_ceil(BLOCK as usize), chunks),
            block: BLOCK,
            shared: 0,
            arguments: &arguments,
        })?;
        Ok(y)
    };
    sum(&sum(x, rows, SUM_ROWS)?, chunks, chunks.max(1))
}

/// Cosines and sines of every (position, frequency).
#[derive(Debug)]
pub(crate) struct Angles {
    pub(crate) cosines: Buffer,
    pub(crate) sines: Buffer,
    /// Frequencies.
    pub(crate) half: usize,
}

impl Angles {
    /// Its arguments to the kernels that rotate rows, with the rows' positions.
    pub(super) fn arguments(&self, positions: List<'_>) -> [Argument; 3] {
        let [cosines, sines] = pointers([&self.cosines, &self.sines]);
        [positions.pointer(), cosines, sines]
    }
}

impl Buffer {
    /// A rounded copy.
    pub(crate) fn operands(&self) -> Result<Buffer<Operand>> {
        let operands = self.gpu().buffer(self.length())?;
        self.round_into(&operands)?;
        Ok(operands)
    }

    /// Writes its numbers, rounded, into `operands`.
    pub(crate) fn round_into(&self, operands: &Buffer<Operand>) -> Result<()> {
        let arguments = [self.pointer(), operands.pointer()];
        self.gpu().each("to_operands", self.length(), &arguments)
    }

    /// self += x.
    pub(crate) fn add(&self, x: &Buffer) -> Result<()> {
        let arguments = pointers([self, x]);
        self.gpu().each("add_assign", self.length(), &arguments)
    }
}
