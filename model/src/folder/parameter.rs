//! One tensor of a model.

use half::{bf16, f16};
use std::sync::Arc;

use crate::Error;
use crate::folder::names::{FACTOR_A, FACTOR_B, HEAD};
use crate::spare::{room, zeros};

/// One parameter: f32 numbers in the in-memory layout, shared between clones.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    shape: Vec<usize>,
    pub(crate) numbers: Arc<Vec<f32>>,
}

impl Parameter {
    /// A parameter of `shape`, row-major.
    ///
    /// # Panics
    /// If the shape holds a different count of numbers.
    pub fn new(shape: Vec<usize>, numbers: Vec<f32>) -> Self {
        let count: usize = shape.iter().product();
        assert_eq!(count, numbers.len(), "shape {shape:?} holds another count");
        Parameter {
            shape,
            numbers: Arc::new(numbers),
        }
    }

    /// Sizes, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The numbers, row-major.
    pub fn numbers(&self) -> &[f32] {
        &self.numbers
    }

    /// Rounds each number to the nearest of bf16, in place where no clone shares the numbers; one
    /// whose numbers are all of bf16 stays shared.
    pub(crate) fn round(&mut self, name: &str) -> crate::Result<()> {
        if self
            .numbers
            .iter()
            .fold(0, |low, x| low | x.to_bits() << 16)
            != 0
        {
            let nearest = |x: f32| bf16::from_f32(x).to_f32();
            match Arc::get_mut(&mut self.numbers) {
                Some(own) => own.iter_mut().for_each(|x| *x = nearest(*x)),
                None => {
                    let mut rounded = room(self.numbers.len());
                    rounded.extend(self.numbers.iter().map(|&x| nearest(x)));
                    self.numbers = Arc::new(rounded);
                }
            }
        }
        check_finite(name, &self.numbers)
    }

    pub(crate) fn shared(&self) -> Arc<Vec<f32>> {
        Arc::clone(&self.numbers)
    }
}

/// Whether a parameter is a dense weight, or a factor of one, kept transposed in
/// memory.
pub(crate) fn is_dense(name: &str) -> bool {
    let dense = ["_proj.weight", FACTOR_A, FACTOR_B];
    dense.iter().any(|ending| name.ends_with(ending)) || name == HEAD
}

/// Rows of a transpose that are made together: as many numbers as a line of the cache holds.
pub(crate) const STRIP: usize = 16;

/// Rows and columns exchanged: `[rows, columns]` in, `[columns, rows]` out.
pub(crate) fn transpose(x: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let mut y = zeros(x.len());
    if rows > 0 {
        for (number, strip) in y.chunks_mut(STRIP * rows).enumerate() {
            transpose_strip(x, (rows, columns), number * STRIP, strip);
        }
    }
    y
}

/// Rows of the transpose, from the `first` on, as many as `y` has room for. Four rows at a time are
/// turned, in squares that fit into registers.
pub(crate) fn transpose_strip(
    x: &[f32],
    (rows, columns): (usize, usize),
    first: usize,
    y: &mut [f32],
) {
    const SQUARE: usize = 4;
    let width = y.len() / rows;
    let line = |row: usize| &x[row * columns + first..][..width];
    let whole = rows - rows % SQUARE;
    for top in (0..whole).step_by(SQUARE) {
        let lines = [0, 1, 2, 3].map(|row| line(top + row).as_chunks::<SQUARE>());
        for square in 0..width / SQUARE {
            let numbers = lines.map(|(squares, _)| squares[square]);
            for column in 0..SQUARE {
                let turned = numbers.map(|numbers| numbers[column]);
                let place = (square * SQUARE + column) * rows + top;
                y[place..][..SQUARE].copy_from_slice(&turned);
            }
        }
        for column in width - width % SQUARE..width {
            for row in top..top + SQUARE {
                y[column * rows + row] = line(row)[column];
            }
        }
    }
    for row in whole..rows {
        for (column, x) in line(row).iter().enumerate() {
            y[column * rows + row] = *x;
        }
    }
}

/// The f32 numbers of a file's tensor.
pub(crate) fn numbers(dtype: safetensors::Dtype, data: &[u8]) -> Result<Vec<f32>, String> {
    let halves = || {
        data.as_chunks::<2>()
            .0
            .iter()
            .map(|&bytes| u16::from_le_bytes(bytes))
    };
    let mut numbers = room(data.len() / dtype.bitsize().div_ceil(8).max(1));
    match dtype {
        safetensors::Dtype::F32 => {
            numbers.extend(data.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)));
        }
        safetensors::Dtype::BF16 => {
            numbers.extend(halves().map(|bits| f32::from_bits(u32::from(bits) << 16)));
        }
        safetensors::Dtype::F16 => {
            numbers.extend(halves().map(|bits| f16::from_bits(bits).to_f32()));
        }
        other => return Err(unsupported(other)),
    }
    Ok(numbers)
}

/// Refuses numbers that are not finite.
pub(crate) fn check_finite(name: &str, numbers: &[f32]) -> crate::Result<()> {
    // No branch in the loop, so that it runs at memory bandwidth.
    let finite = |all: bool, x: &f32| all & x.is_finite();
    if numbers.iter().fold(true, finite) {
        return Ok(());
    }
    Err(Error::NotFinite {
        tensor: name.to_owned(),
        found: numbers.iter().filter(|x| !x.is_finite()).count(),
        all: numbers.len(),
    })
}

/// Refuses a type that [`numbers`] does not read.
pub(crate) fn check_type(dtype: safetensors::Dtype) -> Result<(), String> {
    use safetensors::Dtype::{BF16, F16, F32};
    match dtype {
        F32 | BF16 | F16 => Ok(()),
        other => Err(unsupported(other)),
    }
}

fn unsupported(dtype: safetensors::Dtype) -> String {
    format!("has type {dtype:?}; f32, f16 and bf16 are supported")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transpose_has_every_number_in_its_place() {
        let sizes = [1, 3, 4, 5, 15, 16, 17, 33];
        for rows in sizes {
            for columns in sizes {
                let x: Vec<f32> = (0..rows * columns).map(|i| i as f32).collect();
                let y = transpose(&x, rows, columns);
                for (place, found) in y.iter().enumerate() {
                    let (row, column) = (place % rows, place / rows);
                    assert_eq!(*found, x[row * columns + column], "{rows} x {columns}");
                }
            }
        }
        assert!(transpose(&[], 0, 7).is_empty() && transpose(&[], 7, 0).is_empty());
    }
}
