//! Roofline: the machine's limits, measured in the same process, and the cost of a token. A rate
//! alone does not show how much there is left to gain.

use std::hint::black_box;
use std::time::Instant;

use agentgym_model::{Dtype, ModelConfig, parameter_shapes};
use gemm::{Parallelism, gemm};

/// Duration of each measurement.
const SECONDS: f64 = 0.5;
/// f32-sized numbers that each thread reads for the bandwidth: more than its share of any cache.
const READ: usize = 32 << 20;
/// Side of square matrices that stay in a core's cache.
const SIDE: usize = 384;

/// Limits of this machine for a number of threads.
pub(crate) struct Machine {
    /// Floating-point operations a second, in matrix products of f32.
    pub(crate) operations: f64,
    /// Bytes a second, read from memory.
    pub(crate) bytes: f64,
}

impl Machine {
    /// Measures both, for half a second each.
    pub(crate) fn measure(threads: usize) -> Self {
        Machine {
            operations: on_all(threads, || {
                let (a, b) = (vec![0.5_f32; SIDE * SIDE], vec![0.25_f32; SIDE * SIDE]);
                let mut c = vec![0.0_f32; SIDE * SIDE];
                move || {
                    product(&a, &b, &mut c);
                    2.0 * (SIDE as f64).powi(3)
                }
            }),
            bytes: on_all(threads, || {
                let numbers = vec![1_u64; READ / 2];
                move || {
                    let sums = numbers.chunks_exact(8).fold([0_u64; 8], |mut sums, chunk| {
                        for (sum, number) in sums.iter_mut().zip(chunk) {
                            *sum = sum.wrapping_add(*number);
                        }
                        sums
                    });
                    black_box(sums);
                    8.0 * numbers.len() as f64
                }
            }),
        }
    }
}

/// The amount per second of all threads together. `work` makes each thread's closure, which
/// returns the amount that one call did.
fn on_all<W: FnMut() -> f64>(threads: usize, work: impl Fn() -> W + Sync) -> f64 {
    std::thread::scope(|scope| {
        let rates: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let mut work = work();
                    work();
                    let (start, mut done) = (Instant::now(), 0.0);
                    while start.elapsed().as_secs_f64() < SECONDS {
                        done += work();
                    }
                    done / start.elapsed().as_secs_f64()
                })
            })
            .collect();
        let rates = rates.into_iter().map(|rate| rate.join().expect("no panic"));
        rates.sum()
    })
}

fn product(a: &[f32], b: &[f32], c: &mut [f32]) {
    let (row, column) = (SIDE as isize, 1);
    assert!(a.len() == SIDE * SIDE && b.len() == SIDE * SIDE && c.len() == SIDE * SIDE);
    // SAFETY: three matrices of SIDE × SIDE, row by row, of which only `c` is written.
    unsafe {
        gemm(
            SIDE,
            SIDE,
            SIDE,
            c.as_mut_ptr(),
            column,
            row,
            false,
            a.as_ptr(),
            column,
            row,
            b.as_ptr(),
            column,
            row,
            0.0,
            1.0,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
    black_box(c);
}

/// The cost of a token; 0 where it is not known.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cost {
    /// Multiplications and additions of the model itself; what is recomputed to save memory
    /// counts once.
    pub(crate) operations: f64,
    /// Bytes of weights, keys and values that must be read.
    pub(crate) bytes: f64,
}

/// The sizes of a model that determine its costs.
pub(crate) struct Model {
    /// Numbers in the layers' weights.
    layers: f64,
    /// Numbers in the output head.
    head: f64,
    /// Query numbers of a token, over all layers.
    queries: f64,
    /// Key and value numbers of a token, over all layers.
    cached: f64,
    /// Bytes of a number that products read.
    size: f64,
}

impl Model {
    pub(crate) fn of(config: &ModelConfig, dtype: Dtype) -> Self {
        let shapes = parameter_shapes(config);
        let layers = shapes
            .iter()
            .filter(|(name, _)| name.contains(".layers."))
            .map(|(_, shape)| shape.iter().product::<usize>() as f64);
        let each = |width: usize| (config.num_hidden_layers * width) as f64;
        Model {
            layers: layers.sum(),
            head: (config.hidden_size * config.vocab_size) as f64,
            queries: each(config.query_width()),
            cached: each(2 * config.key_width()),
            size: match dtype {
                Dtype::F32 => 4.0,
                Dtype::Bf16 => 2.0,
            },
        }
    }

    /// Parameters that are read.
    pub(crate) fn numbers(&self) -> f64 {
        self.layers + self.head
    }

    /// One forward pass over a token that attends to `context` tokens on average; without the head
    /// where no prediction is needed.
    pub(crate) fn forward(&self, context: f64, with_head: bool) -> Cost {
        let head = if with_head { self.head } else { 0.0 };
        Cost {
            // A product with the keys and one with the values, both as wide as the queries.
            operations: 2.0 * (self.layers + head) + 4.0 * self.queries * context,
            bytes: 0.0,
        }
    }

    /// Training: the derivatives by input and by weight cost one forward pass each.
    pub(crate) fn trained(&self, context: f64) -> Cost {
        Cost {
            operations: 3.0 * self.forward(context, true).operations,
            bytes: 0.0,
        }
    }

    /// A decoded token, where `rows` sequences share one read of the weights.
    pub(crate) fn decoded(&self, context: f64, rows: f64) -> Cost {
        Cost {
            bytes: self.size * (self.numbers() / rows + self.cached * context),
            ..self.forward(context, true)
        }
    }
}
