//! Products of rows with weights, forward and backward: of operands, into f32.

use super::backend::{Buffer, Operand, Product, TILE};
use super::matrix::{Matrix, Operands};
use super::tape::{self, Gradients};
use crate::Result;

/// A dense weight, `[inner, width]` as in [`crate::Weights`], or stored transposed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dense<'a> {
    numbers: &'a Buffer<Operand>,
    pub(crate) inner: usize,
    pub(crate) width: usize,
    pub(crate) transposed: bool,
    /// Offset of its first row, in elements.
    first: usize,
    /// Elements from the start of one row to the next.
    stride: usize,
}

impl<'a> Dense<'a> {
    /// The whole of a stored weight.
    pub(crate) fn new(numbers: &'a Buffer<Operand>, inner: usize, width: usize) -> Self {
        Dense {
            numbers,
            inner,
            width,
            transposed: false,
            first: 0,
            stride: width,
        }
    }

    /// The whole of a weight that is stored as `[width, inner]`.
    pub(crate) fn turned(numbers: &'a Buffer<Operand>, inner: usize, width: usize) -> Self {
        Dense {
            transposed: true,
            stride: inner,
            ..Dense::new(numbers, inner, width)
        }
    }

    /// `width` of its columns, from `first` on; the weight must not be stored transposed.
    pub(crate) fn columns(self, first: usize, width: usize) -> Self {
        debug_assert!(!self.transposed);
        Dense {
            first,
            width,
            ..self
        }
    }

    fn address(self) -> u64 {
        self.numbers.address_at(self.first)
    }
}

impl Matrix {
    /// self += x · weight.
    pub(crate) fn add_times(&mut self, x: &Operands, weight: Dense<'_>) -> Result<()> {
        self.add_tiles(x, weight, true)
    }

    /// Tile by tile, so that a row's bits do not depend on how many rows there are.
    fn add_tiles(&mut self, x: &Operands, weight: Dense<'_>, accumulate: bool) -> Result<()> {
        for first in (0..x.rows()).step_by(TILE) {
            self.gpu().multiply(&Product {
                a: x.row_address(first),
                b: weight.address(),
                c: self.row_address(first),
                m: TILE,
                k: weight.inner,
                n: weight.width,
                a_transposed: false,
                b_transposed: weight.transposed,
                b_stride: weight.stride,
                accumulate,
            })?;
        }
        Ok(())
    }

    /// self (+)= grad · weightᵀ.
    pub(crate) fn add_times_transposed(
        &mut self,
        grad: &Operands,
        weight: Dense<'_>,
        accumulate: bool,
    ) -> Result<()> {
        self.gpu().multiply(&Product {
            a: grad.address(),
            b: weight.address(),
            c: self.address(),
            m: grad.rows(),
            k: weight.width,
            n: weight.inner,
            a_transposed: false,
            b_transposed: !weight.transposed,
            b_stride: weight.stride,
            accumulate,
        })
    }
}

impl Operands {
    /// self · weight.
    pub(crate) fn times(&self, weight: Dense<'_>) -> Result<Matrix> {
        let mut y: Matrix = self.gpu().matrix(self.rows(), weight.width)?;
        y.add_tiles(self, weight, false)?;
        Ok(y)
    }

    /// self · weightᵀ: the derivative by a product's input, given the one by its output.
    pub(crate) fn times_transposed(&self, weight: Dense<'_>) -> Result<Matrix> {
        let mut y: Matrix = self.gpu().matrix(self.rows(), weight.inner)?;
        y.add_times_transposed(self, weight, false)?;
        Ok(y)
    }

    /// `to` (+)= selfᵀ · grad: the derivative by a product's weight. The sums go over whole tiles of
    /// rows: of sums whose length is no multiple of its blocks' a library was seen to lose terms
    /// (facebookexperimental/triton#2767).
    pub(crate) fn add_weight_gradient(
        &self,
        grad: &Operands,
        to: &Buffer,
        accumulate: bool,
    ) -> Result<()> {
        self.clear_padding()?;
        grad.clear_padding()?;
        self.gpu().multiply(&Product {
            a: self.address(),
            b: grad.address(),
            c: to.address(),
            m: self.width(),
            k: self.padded(),
            n: grad.width(),
            a_transposed: true,
            b_transposed: false,
            b_stride: grad.width(),
            accumulate,
        })
    }

    /// Adds selfᵀ · grad to the gradient of a weight.
    pub(crate) fn derive_weight(
        &self,
        grad: &Operands,
        name: &str,
        gradients: &mut Gradients,
    ) -> Result<()> {
        let length = self.width() * grad.width();
        let (sum, begun) = tape::sum(gradients, self.gpu(), name, length)?;
        self.add_weight_gradient(grad, sum, begun)
    }
}
