//! The dense layer on slices: y = x · weight (+ bias) with `[in, out]` weights, and its derivatives,
//! in f32 or in bf16. A row's result does not depend on the other rows, nor does a column's on the
//! others, so that the threads of a team may each take some columns.

use super::bf16::{self, Left, Panels, Right, Rows};
use super::matmul::{View, matmul, product_in};
use super::{dot, vectorised};
use crate::parallel;
use crate::spare::{reused, zeros};
use std::mem::take;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// Columns that a team does not divide: a panel in bf16, a line of the cache in f32. Of a single
/// column `gemm` would choose the order of additions.
const UNDIVIDED: usize = 16;

/// Sizes of a dense layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    /// Numbers per input row.
    pub(crate) inner: usize,
    /// Numbers per output row.
    pub(crate) width: usize,
}

/// That products with a weight are computed in bf16; a clone shares the weight rounded, once it is kept.
#[derive(Debug, Clone, Default)]
pub(crate) struct Halves(Arc<OnceLock<Panels>>);

/// A weight `[in, out]`, and the format of its products.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Weight<'a> {
    numbers: View<'a>,
    halves: Option<&'a Halves>,
}

impl<'a> Weight<'a> {
    /// A weight whose products are in f32 unless there are `halves`.
    pub(crate) fn new(numbers: View<'a>, halves: Option<&'a Halves>) -> Self {
        Weight { numbers, halves }
    }

    /// A contiguous weight in f32.
    pub(crate) fn f32(numbers: &'a [f32], sizes: Sizes) -> Self {
        Weight::new(View::new(numbers, sizes.inner, sizes.width), None)
    }

    /// Numbers per input row.
    pub(crate) fn inner(self) -> usize {
        self.numbers.rows()
    }

    /// Numbers per output row.
    pub(crate) fn width(self) -> usize {
        self.numbers.columns()
    }

    /// Rounds a weight of products in bf16 once for all products from now on: for few rows that
    /// takes longer than the product.
    pub(crate) fn keep_halves(self) {
        if let Some(Halves(kept)) = self.halves {
            kept.get_or_init(|| Panels::new(self.numbers));
        }
    }

    /// The right side of a product in bf16.
    fn halved(self, halves: &'a Halves) -> Right<'a> {
        halves
            .0
            .get()
            .map_or(Right::Matrix(self.numbers), Right::Panels)
    }

    /// y = x · weight + bias.
    pub(crate) fn apply(self, x: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
        let count = x.len() / self.inner();
        if let Some(bias) = bias {
            let mut y = bias.repeat(count);
            self.add_to(&mut y, x);
            return y;
        }
        product(Vec::new(), (count, self.width()), |y, columns| {
            self.product_columns(y, x, columns)
        })
    }

    /// Some columns of x · weight, in the memory of `y`.
    fn product_columns(self, mut y: Vec<f32>, x: &[f32], columns: Range<usize>) -> Vec<f32> {
        match self.halves {
            Some(halves) => {
                let x = Rows::new(x, self.inner());
                bf16::product_in(y, Left::Rows(&x), self.halved(halves), columns)
            }
            None if self.width() == 1 => {
                y.resize(x.len() / self.inner(), 0.0);
                self.multiply_columns(&mut y, x, columns, false);
                y
            }
            None => product_in(y, rows(x, self.inner()), self.numbers, columns),
        }
    }

    /// y += x · weight.
    pub(crate) fn add_to(self, y: &mut [f32], x: &[f32]) {
        self.multiply(y, x, true);
    }

    /// y = x · weight, or y += x · weight.
    pub(crate) fn multiply(self, y: &mut [f32], x: &[f32], add: bool) {
        divide(self.width(), y, add, |y, columns| {
            self.multiply_columns(y, x, columns, add);
        });
    }

    /// Some columns of y, of which `y` has no others.
    fn multiply_columns(self, y: &mut [f32], x: &[f32], columns: Range<usize>, add: bool) {
        if let Some(halves) = self.halves {
            let x = Rows::new(x, self.inner());
            bf16::product_to(y, Left::Rows(&x), self.halved(halves), columns, add);
        } else if self.width() == 1 {
            let weight = self.numbers.numbers();
            // `gemm` would choose the order of additions by the number of rows.
            vectorised(
                #[inline(always)]
                || {
                    for (y, row) in y.iter_mut().zip(x.chunks_exact(self.inner())) {
                        *y = dot(row, weight) + if add { *y } else { 0.0 };
                    }
                },
            );
        } else {
            matmul(rows(x, self.inner()), self.numbers, columns, y, add);
        }
    }

    /// ∂x = grad · weightᵀ.
    pub(crate) fn grad_input(self, grad: &[f32]) -> Vec<f32> {
        let (width, back) = (self.width(), self.numbers.transposed());
        let rounded = self.halves.map(|_| Rows::new(grad, width));
        let sizes = (grad.len() / width, self.inner());
        product(Vec::new(), sizes, |y, columns| match &rounded {
            None => product_in(y, rows(grad, width), back, columns),
            Some(grad) => bf16::product_in(y, Left::Rows(grad), Right::Matrix(back), columns),
        })
    }

    /// ∂x = grad · weightᵀ, or ∂x += grad · weightᵀ.
    pub(crate) fn grad_input_to(self, grad_x: &mut [f32], grad: &[f32], add: bool) {
        let (width, back) = (self.width(), self.numbers.transposed());
        let rounded = self.halves.map(|_| Rows::new(grad, width));
        divide(
            self.inner(),
            grad_x,
            add,
            |grad_x, columns| match &rounded {
                None => matmul(rows(grad, width), back, columns, grad_x, add),
                Some(grad) => {
                    bf16::product_to(grad_x, Left::Rows(grad), Right::Matrix(back), columns, add);
                }
            },
        );
    }

    /// ∂weight = xᵀ · grad, in the memory of `room`.
    pub(crate) fn grad_weight(self, room: Vec<f32>, x: &[f32], grad: &[f32]) -> Vec<f32> {
        let (x, grad) = self.sides(x, grad);
        let rounded = self.halves.map(|_| Panels::new(x));
        let sizes = (x.columns(), grad.columns());
        product(room, sizes, |y, columns| match &rounded {
            None => product_in(y, x.transposed(), grad, columns),
            Some(x) => bf16::product_in(y, Left::Columns(x), Right::Matrix(grad), columns),
        })
    }

    /// ∂weight += xᵀ · grad; where nothing is in `by_weight` yet but its memory, ∂weight = xᵀ · grad.
    pub(crate) fn add_grad_weight(self, by_weight: &mut Vec<f32>, x: &[f32], grad: &[f32]) {
        if by_weight.is_empty() && self.halves.is_some() {
            *by_weight = self.grad_weight(take(by_weight), x, grad);
            return;
        }
        // Sums that begin at zero differ from the product in the sign of a zero.
        by_weight.resize(self.inner() * self.width(), 0.0);
        let (x, grad) = self.sides(x, grad);
        let rounded = self.halves.map(|_| Panels::new(x));
        divide(
            grad.columns(),
            by_weight,
            true,
            |y, columns| match &rounded {
                None => matmul(x.transposed(), grad, columns, y, true),
                Some(x) => {
                    bf16::product_to(y, Left::Columns(x), Right::Matrix(grad), columns, true);
                }
            },
        );
    }

    /// Input rows and derivatives, exchanged where the weight lies transposed.
    fn sides<'b>(self, x: &'b [f32], grad: &'b [f32]) -> (View<'b>, View<'b>) {
        let (x, grad) = (rows(x, self.inner()), rows(grad, self.width()));
        match self.numbers.is_transposed() {
            true => (grad, x),
            false => (x, grad),
        }
    }
}

/// How many threads of the caller's team take columns of a product of so many.
fn share_count(width: usize) -> usize {
    parallel::team().min(width / UNDIVIDED).max(1)
}

/// The columns that each of them takes.
fn shares(width: usize) -> Vec<Range<usize>> {
    let count = share_count(width);
    let share = width / count / UNDIVIDED * UNDIVIDED;
    let end = |number| match number == count {
        true => width,
        false => number * share,
    };
    (0..count).map(|n| end(n)..end(n + 1)).collect()
}

/// A matrix of these sizes, in the memory of `y`, by the caller's team: `work` computes some columns,
/// in the memory that it is given.
fn product(
    y: Vec<f32>,
    (count, width): (usize, usize),
    work: impl Fn(Vec<f32>, Range<usize>) -> Vec<f32> + Sync + Send,
) -> Vec<f32> {
    if share_count(width) == 1 {
        return work(y, 0..width);
    }
    let parts = parallel::divided(shares(width), |columns| {
        (columns.len(), work(Vec::new(), columns))
    });
    let mut y = reused(y, count * width);
    for row in 0..count {
        for (width, part) in &parts {
            y.extend_from_slice(&part[row * width..(row + 1) * width]);
        }
    }
    y
}

/// Has the caller's team compute `y`, rows of `width` numbers, or add to it: `work` computes some
/// columns in a matrix that has no others.
fn divide(
    width: usize,
    y: &mut [f32],
    add: bool,
    work: impl Fn(&mut [f32], Range<usize>) + Sync + Send,
) {
    if share_count(width) == 1 {
        return work(y, 0..width);
    }
    let before = &*y;
    let parts = parallel::divided(shares(width), |columns| {
        let mut part = zeros(before.len() / width * columns.len());
        if add {
            let before = before.chunks_exact(width);
            for (part, row) in part.chunks_exact_mut(columns.len()).zip(before) {
                part.copy_from_slice(&row[columns.clone()]);
            }
        }
        work(&mut part, columns.clone());
        (columns, part)
    });
    for (columns, part) in parts {
        let part = part.chunks_exact(columns.len());
        for (row, part) in y.chunks_exact_mut(width).zip(part) {
            row[columns.clone()].copy_from_slice(part);
        }
    }
}

/// Contiguous rows of `width` numbers.
fn rows(x: &[f32], width: usize) -> View<'_> {
    View::new(x, x.len() / width, width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::tests::numbers;
    use crate::parallel::Team;

    #[test]
    fn the_columns_of_a_team_are_those_of_one_thread() {
        for (threads, inner, width) in [
            (2, 7, 1),
            (2, 40, 16),
            (2, 40, 33),
            (3, 33, 96),
            (3, 600, 200),
        ] {
            let team = Team::new(threads);
            let data = numbers(inner * width, 3);
            let bias = numbers(width, 4);
            let [kept, rounded] = [(); 2].map(|()| Halves::default());
            let straight = View::new(&data, inner, width);
            Weight::new(straight, Some(&kept)).keep_halves();
            let turned = View::new(&data, width, inner).transposed();
            for (number, weight) in [
                Weight::new(straight, None),
                Weight::new(turned, None),
                Weight::new(straight, Some(&kept)),
                Weight::new(straight, Some(&rounded)),
                Weight::new(turned, Some(&rounded)),
            ]
            .into_iter()
            .enumerate()
            {
                let shares = team.run(|| shares(weight.width()));
                assert_eq!(shares.len(), threads.min(width / UNDIVIDED).max(1));
                for rows in [1, 2, 9] {
                    let x = numbers(rows * inner, 5);
                    for bias in [None, Some(bias.as_slice())] {
                        let alone = weight.apply(&x, bias);
                        let together = team.run(|| weight.apply(&x, bias));
                        assert!(
                            together == alone,
                            "weight {number}, {rows} rows, {inner} by {width}"
                        );
                    }
                    for add in [false, true] {
                        let [mut alone, mut together] = [(); 2].map(|()| numbers(rows * width, 6));
                        weight.multiply(&mut alone, &x, add);
                        team.run(|| weight.multiply(&mut together, &x, add));
                        assert!(
                            together == alone,
                            "weight {number}, {rows} rows, {inner} by {width}"
                        );
                    }
                }
            }
        }
    }
}
