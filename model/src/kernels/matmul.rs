//! Dense products in one reproducible order: each output is a single chain of fused
//! multiply-adds over k, split at multiples of 512. `gemm`'s general kernel computes in this
//! order, and so does `few_rows` for the few rows of decode. gemm's other paths are avoided:
//! the one for a single row by padding it to two, the one for lane-wise dots by transposing
//! the left side of the few products that would take it, the one for a last piece of one or
//! two k by zeros. One thread: several take different sequences, or different columns.

use super::few_rows::{FewRows, K_PIECE};
use crate::spare::reused;
use gemm::Parallelism;
use std::borrow::Cow;
use std::ops::Range;

/// Smallest k for which `gemm` uses its general kernel.
const K_LEAST: usize = 3;

/// Columns of one call: a piece of this width stays in the L2 cache (1 MB). `gemm` itself does not
/// ensure that, since it takes the size of the shared L3 cache for its own.
const STRIP: usize = 256;

/// Rows up to which [`FewRows`] is faster.
const FEW: usize = 48;

/// A row-major or transposed view of a matrix: element (r, c) is at
/// `r * row_stride + c * column_stride`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> View<'a> {
    /// A contiguous row-major matrix.
    pub(crate) fn new(data: &'a [f32], rows: usize, columns: usize) -> Self {
        assert_eq!(data.len(), rows * columns, "a matrix must fill its slice");
        View {
            data,
            rows,
            columns,
            row_stride: columns,
            column_stride: 1,
        }
    }

    /// Its numbers as they lie.
    pub(crate) fn numbers(self) -> &'a [f32] {
        self.data
    }

    /// Its number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Its number of columns.
    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// Whether its columns are contiguous, not its rows.
    pub(crate) fn is_transposed(&self) -> bool {
        self.column_stride != 1
    }

    /// The same elements with rows and columns exchanged.
    pub(crate) fn transposed(self) -> Self {
        View {
            data: self.data,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }

    fn at(self, row: usize, column: usize) -> f32 {
        self.data[row * self.row_stride + column * self.column_stride]
    }

    /// Some of its columns, one after another.
    fn turned(self, columns: Range<usize>) -> Vec<f32> {
        let column = |c| (0..self.rows).map(move |r| self.at(r, c));
        columns.flat_map(column).collect()
    }

    /// Its rows, one after another.
    fn contiguous(self) -> Cow<'a, [f32]> {
        if self.column_stride == 1 {
            return Cow::Borrowed(self.data);
        }
        Cow::Owned(self.transposed().turned(0..self.rows))
    }
}

/// Some columns of `a·b`, row-major, in the memory of `output`.
pub(crate) fn product_in(
    output: Vec<f32>,
    a: View<'_>,
    b: View<'_>,
    columns: Range<usize>,
) -> Vec<f32> {
    let count = a.rows * columns.len();
    let mut output = reused(output, count);
    if a.rows <= FEW || a.columns == 0 {
        output.resize(count, 0.0);
        matmul(a, b, columns, &mut output, false);
        return output;
    }
    assert_eq!(a.columns, b.rows, "inner sizes differ");
    assert!(columns.end <= b.columns, "there are fewer columns");
    // Filling it with zeros first would cost a twentieth of a training step.
    // SAFETY: there is room for `count` numbers, and without accumulation all of them are
    // written and none is read before.
    unsafe {
        pieces(a, b, columns, output.as_mut_ptr(), false);
        output.set_len(count);
    }
    output
}

/// `output = a·b`, or `output += a·b`, of some columns of b; `output` is row-major and has no others.
pub(crate) fn matmul(
    a: View<'_>,
    b: View<'_>,
    columns: Range<usize>,
    output: &mut [f32],
    accumulate: bool,
) {
    assert_eq!(a.columns, b.rows, "inner sizes differ");
    assert!(columns.end <= b.columns, "there are fewer columns");
    let count = a.rows * columns.len();
    assert_eq!(output.len(), count, "output has another size");
    if a.columns == 0 {
        if !accumulate {
            output.fill(0.0);
        }
        return;
    }
    if a.rows <= FEW && b.column_stride == 1 && a.rows > 0 {
        let rows = a.rows;
        let a = a.contiguous();
        pulp::Arch::new().dispatch(FewRows {
            a: &a,
            b: b.data,
            rows,
            width: b.columns,
            columns,
            output,
            accumulate,
        });
    } else if a.rows == 1 {
        let rows = a.contiguous().repeat(2);
        let mut outputs = output.repeat(2);
        let rows = View::new(&rows, 2, a.columns);
        matmul(rows, b, columns, &mut outputs, accumulate);
        output.copy_from_slice(&outputs[..output.len()]);
    } else {
        // SAFETY: `output` is as large as the product, checked above.
        unsafe { pieces(a, b, columns, output.as_mut_ptr(), accumulate) };
    }
}

/// Whether `gemm` would compute this many columns of the product by lane-wise dots: both sides are
/// contiguous along k, and there are at most 256 outputs or one column.
fn lane_wise(a: View<'_>, b: View<'_>, columns: usize) -> bool {
    a.column_stride == 1 && b.row_stride == 1 && (columns == 1 || a.rows * columns <= 256)
}

/// Writes some columns of the product to `output`, or adds them.
///
/// # Safety
/// `output` must have room for `a.rows · columns.len()` numbers, which must be initialised where
/// they are added to; `a.columns` must not be 0 and must equal `b.rows`, and b must have the columns.
unsafe fn pieces(
    a: View<'_>,
    b: View<'_>,
    columns: Range<usize>,
    output: *mut f32,
    accumulate: bool,
) {
    if a.rows == 0 || columns.is_empty() {
        return;
    }
    let last = a.columns % K_PIECE;
    if last == 0 || last >= K_LEAST {
        // SAFETY: the caller's promise.
        return unsafe { strips((a, b), columns, a.columns, output, accumulate) };
    }
    // Adding zeros does not change a sum.
    let whole = a.columns - last;
    let padded = |mut numbers: Vec<f32>| {
        numbers.resize(numbers.len() / last * K_LEAST, 0.0);
        numbers
    };
    let left = padded(a.turned(whole..a.columns));
    let right = padded(b.transposed().turned(whole..a.columns));
    let left = View::new(&left, K_LEAST, a.rows).transposed();
    let right = View::new(&right, K_LEAST, b.columns);
    // SAFETY: the caller's promise; the second call adds to what the first wrote.
    unsafe {
        if whole > 0 {
            strips((a, b), columns.clone(), whole, output, accumulate);
        }
        let last = (left, right);
        strips(last, columns, K_LEAST, output, accumulate || whole > 0);
    }
}

/// The product over the first `inner` k.
///
/// # Safety
/// As for [`pieces`]; `inner` must not exceed the inner size of either operand.
unsafe fn strips(
    (a, b): (View<'_>, View<'_>),
    columns: Range<usize>,
    inner: usize,
    output: *mut f32,
    accumulate: bool,
) {
    for first in columns.clone().step_by(STRIP) {
        let width = STRIP.min(columns.end - first);
        for start in (0..inner).step_by(K_PIECE) {
            let length = K_PIECE.min(inner - start);
            let turned = lane_wise(a, b, width).then(|| a.turned(start..start + length));
            let (lhs, [row_stride, column_stride]) = match &turned {
                Some(turned) => (turned.as_slice(), [1, a.rows]),
                None => (
                    &a.data[start * a.column_stride..],
                    [a.row_stride, a.column_stride],
                ),
            };
            let rhs = &b.data[start * b.row_stride + first * b.column_stride..];
            // SAFETY: `lhs` holds rows × length and `rhs` length × width elements at the
            // given strides because both views cover their slices exactly (checked in
            // `View::new`) and `turned` is made so, start + length <= inner and first + width
            // <= b.columns; `output` is the caller's promise, and the first piece writes all of
            // a strip unless it accumulates.
            unsafe {
                gemm::gemm(
                    a.rows,
                    width,
                    length,
                    output.add(first - columns.start),
                    1,
                    columns.len() as isize,
                    accumulate || start > 0,
                    lhs.as_ptr(),
                    column_stride as isize,
                    row_stride as isize,
                    rhs.as_ptr(),
                    b.column_stride as isize,
                    b.row_stride as isize,
                    1.0,
                    1.0,
                    false,
                    false,
                    false,
                    Parallelism::None,
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::parameter::transpose;
    use crate::kernels::tests::numbers;

    /// The specified order: one chain of fused multiply-adds per piece, added to the previous sum.
    fn in_order(
        start: f32,
        (a, row): (&[f32], usize),
        (b, n, column): (&[f32], usize, usize),
    ) -> f32 {
        let k = b.len() / n;
        let mut total = start;
        for piece in (0..k).step_by(K_PIECE) {
            let mut sum = 0.0f32;
            for i in piece..k.min(piece + K_PIECE) {
                sum = a[row * k + i].mul_add(b[i * n + column], sum);
            }
            total += sum;
        }
        total
    }

    #[test]
    fn every_row_count_gives_the_promised_bits() {
        for k in [1, 2, 3, 16, 176, 512, 513, 514, 1300] {
            for n in [2, 5, 64, 100, 257] {
                let b = numbers(k * n, 7);
                let turned = transpose(&b, k, n);
                for m in [1, 2, 3, 8, 13, FEW, FEW + 1, 65] {
                    let a = numbers(m * k, 11);
                    let (x, weight) = (View::new(&a, m, k), View::new(&b, k, n));
                    let mut fresh = vec![f32::NAN; m * n];
                    matmul(x, weight, 0..n, &mut fresh, false);
                    assert_eq!(product_in(Vec::new(), x, weight, 0..n), fresh);
                    let start = numbers(m * n, 13);
                    let mut added = start.clone();
                    matmul(x, weight, 0..n, &mut added, true);
                    // A tied head is read in the embedding's memory layout.
                    let tied = View::new(&turned, n, k).transposed();
                    assert_eq!(
                        product_in(Vec::new(), x, tied, 0..n),
                        fresh,
                        "m {m} k {k} n {n}"
                    );
                    let mut also_added = start.clone();
                    matmul(x, tied, 0..n, &mut also_added, true);
                    assert_eq!(also_added, added, "m {m} k {k} n {n}");
                    for place in 0..m * n {
                        let (row, column) = (place / n, place % n);
                        for (found, start) in [(fresh[place], 0.0), (added[place], start[place])] {
                            let expected = in_order(start, (&a, row), (&b, n, column));
                            assert_eq!(
                                found.to_bits(),
                                expected.to_bits(),
                                "m {m} k {k} n {n} at ({row}, {column})"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn accumulation_and_transposed_views() {
        let (m, k, n) = (3, 5, 4);
        let (a, b) = (numbers(k * m, 1), numbers(n * k, 2));
        let mut output = vec![1.0; m * n];
        matmul(
            View::new(&a, k, m).transposed(),
            View::new(&b, n, k).transposed(),
            0..n,
            &mut output,
            true,
        );
        for row in 0..m {
            for column in 0..n {
                let sum: f32 = (0..k).map(|i| a[i * m + row] * b[column * k + i]).sum();
                assert!((output[row * n + column] - 1.0 - sum).abs() < 1e-5);
            }
        }
    }
}
