//! One tensor of a model.

use half::f16;
use std::sync::Arc;

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

/// Rows and columns exchanged: `[rows, columns]` in, `[columns, rows]` out.
pub(crate) fn transpose(x: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    /// Rows and columns of a tile are lines of the cache; a whole one is turned in registers.
    const SQUARE: usize = 16;
    let mut y = zeros(x.len());
    for left in (0..columns).step_by(SQUARE) {
        for top in (0..rows).step_by(SQUARE) {
            if columns - left < SQUARE || rows - top < SQUARE {
                for row in top..rows.min(top + SQUARE) {
                    for column in left..columns.min(left + SQUARE) {
                        y[column * rows + row] = x[row * columns + column];
                    }
                }
                continue;
            }
            let mut tile = [[0.0; SQUARE]; SQUARE];
            for row in 0..SQUARE {
                let line = &x[(top + row) * columns + left..][..SQUARE];
                for column in 0..SQUARE {
                    tile[column][row] = line[column];
                }
            }
            for (column, numbers) in tile.iter().enumerate() {
                y[(left + column) * rows + top..][..SQUARE].copy_from_slice(numbers);
            }
        }
    }
    y
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
