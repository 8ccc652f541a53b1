//! AdamW as PyTorch defines it (decoupled decay, bias correction, eps added after
//! the corrected root), with `clip_grad_norm_`'s global clipping folded in, one
//! pass over each parameter, and a state that can be written and read back.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

use rayon::prelude::*;

use crate::cpu::gradients::Gradients;
use crate::folder::parameter::{check_finite, is_dense, numbers, transpose};
use crate::folder::tensor_file::{self, Entries, TensorFile};
use crate::kernels::vectorised;
use crate::parallel::{self, ComputeOptions};
use crate::spare::zeros;
use crate::{Error, Result, Weights};

pub(crate) const FILE: &str = "state.safetensors";
const MOMENTS: [&str; 2] = ["exp_avg", "exp_avg_sq"];

/// Options of the optimizer; the learning rate comes with each step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// Decay of the first and of the second moment.
    pub betas: (f64, f64),
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay, times the learning rate.
    pub weight_decay: f64,
    /// Largest global gradient norm; 0 disables clipping.
    pub grad_clip: f64,
    /// Whether one-dimensional parameters are excluded from decay.
    pub decay_excludes_norms_and_biases: bool,
}

impl Default for AdamW {
    fn default() -> Self {
        AdamW {
            betas: (0.9, 0.999),
            eps: 1e-8,
            weight_decay: 0.01,
            grad_clip: 1.0,
            decay_excludes_norms_and_biases: false,
        }
    }
}

/// What an optimizer step did.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepReport {
    /// Global L2 norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Factor by which clipping scaled the gradient; 1 without clipping.
    pub clip_scale: f64,
    /// The gradient was not finite: nothing was changed.
    pub skipped_non_finite: bool,
    /// Tokens that went through forward and backward.
    pub tokens: usize,
}

/// First and second moment of one parameter, in the in-memory layout.
#[derive(Debug, Clone, PartialEq)]
struct Moments {
    shape: Vec<usize>,
    first: Vec<f32>,
    second: Vec<f32>,
}

/// Moments of every parameter and the number of steps made.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AdamWState {
    step: u64,
    moments: BTreeMap<String, Moments>,
}

impl AdamWState {
    /// No steps yet, for trained parameters of these names and in-memory shapes.
    pub(crate) fn new(shapes: BTreeMap<String, Vec<usize>>) -> Self {
        let moments = shapes
            .into_iter()
            .map(|(name, shape)| {
                let count = shape.iter().product();
                (
                    name,
                    Moments {
                        shape,
                        first: zeros(count),
                        second: zeros(count),
                    },
                )
            })
            .collect();
        AdamWState { step: 0, moments }
    }

    /// Steps made.
    pub(crate) fn step(&self) -> u64 {
        self.step
    }

    /// Makes a step on `weights`, with the parameters divided over the threads. The new weights
    /// reuse the gradient's memory: a fresh gigabyte costs more than the arithmetic on it.
    pub(crate) fn update(
        &mut self,
        adamw: &AdamW,
        weights: &mut Weights,
        mut gradients: Gradients,
        lr: f64,
        options: &ComputeOptions<'_>,
    ) -> Result<StepReport> {
        let (report, step) = self.begin(adamw, gradients.norm(options)?, lr);
        let Some(step) = step else {
            return Ok(report);
        };
        let parameters: Vec<_> = self
            .moments
            .iter_mut()
            .map(|(name, moments)| {
                let gradient = gradients.remove(name);
                Mutex::new((name.as_str(), moments, gradient))
            })
            .collect();
        let updated = parallel::map(options, parameters.len(), |number| {
            let mut parameter = parameters[number].lock().expect("one thread takes it");
            let (name, moments, gradient) = &mut *parameter;
            // Without a gradient the moments decay as under a zero gradient.
            let gradient = gradient.take();
            let mut numbers = gradient.unwrap_or_else(|| vec![0.0; moments.first.len()]);
            if let Some(old) = weights.get(name) {
                let pass = step.pass(&moments.shape);
                if !pass.run(old.numbers(), &mut numbers, moments) {
                    check_finite(name, &numbers)?;
                }
            }
            Ok((*name, numbers))
        })?;
        for (name, numbers) in updated {
            weights.replace(name, |_| numbers);
        }
        Ok(report)
    }

    /// Counts a step for a gradient of this norm; `None` where the norm is not finite and
    /// nothing must be changed.
    pub(crate) fn begin<'a>(
        &mut self,
        options: &'a AdamW,
        grad_norm: f64,
        lr: f64,
    ) -> (StepReport, Option<Step<'a>>) {
        let mut report = StepReport {
            grad_norm,
            clip_scale: 1.0,
            ..StepReport::default()
        };
        if !grad_norm.is_finite() {
            report.skipped_non_finite = true;
            return (report, None);
        }
        if options.grad_clip > 0.0 {
            report.clip_scale = (options.grad_clip / (grad_norm + 1e-6)).min(1.0);
        }
        self.step += 1;
        let step = Step {
            options,
            clip_scale: report.clip_scale,
            lr,
            number: self.step,
        };
        (report, Some(step))
    }

    /// Name, shape and both moments of every parameter.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &[usize], [&[f32]; 2])> {
        self.moments.iter().map(|(name, moments)| {
            let numbers = [moments.first.as_slice(), moments.second.as_slice()];
            (name.as_str(), moments.shape.as_slice(), numbers)
        })
    }

    /// Frees the moments, which are elsewhere from now on.
    pub(crate) fn forget_moments(&mut self) {
        for moments in self.moments.values_mut() {
            (moments.first, moments.second) = (Vec::new(), Vec::new());
        }
    }

    /// The same step count with other numbers in the moments.
    pub(crate) fn with_moments(
        &self,
        numbers: impl Fn(&str) -> Result<[Vec<f32>; 2]>,
    ) -> Result<Self> {
        let mut state = self.clone();
        for (name, moments) in &mut state.moments {
            [moments.first, moments.second] = numbers(name)?;
        }
        Ok(state)
    }

    /// The tensors of `state.safetensors`, with Hugging Face's names and layout and the prefixes
    /// `exp_avg.` and `exp_avg_sq.`; and its metadata, the step count.
    pub(crate) fn entries(&self) -> Result<(Entries<'_>, [(&'static str, String); 1])> {
        let mut entries = BTreeMap::new();
        for (name, moments) in &self.moments {
            for (kind, numbers) in MOMENTS.into_iter().zip([&moments.first, &moments.second]) {
                let entry = tensor_file::entry(name, moments.shape.clone(), numbers);
                let name = format!("{kind}.{name}");
                entry.check_finite(&name)?;
                entries.insert(name, entry);
            }
        }
        Ok((entries, [("step", self.step.to_string())]))
    }

    /// Whether these are moments of parameters of such shapes.
    pub(crate) fn is_of(&self, shapes: &BTreeMap<String, Vec<usize>>) -> bool {
        let own = self.moments.iter().map(|(name, of)| (name, &of.shape));
        own.eq(shapes)
    }

    /// Bytes of the moments.
    pub(crate) fn bytes(&self) -> usize {
        let numbers = self
            .moments
            .values()
            .map(|of| of.first.len() + of.second.len());
        numbers.sum::<usize>() * size_of::<f32>()
    }

    /// Reads the file with the entries of such a state, of the same parameters.
    pub(crate) fn load(dir: &Path, shapes: BTreeMap<String, Vec<usize>>) -> Result<Self> {
        let path = dir.join(FILE);
        let file = TensorFile::open(&path)?;
        let step = file.said("step").and_then(|step| step.parse().ok());
        let bad = |tensor: String, message: String| Error::Tensor {
            path: path.clone(),
            tensor,
            message,
        };
        let Some(step) = step else {
            return Err(Error::Json {
                path: path.clone(),
                message: "the metadata lack the step count; not an optimizer state".to_owned(),
            });
        };
        let read = |kind: &str, name: &str, shape: &[usize]| {
            let tensor = format!("{kind}.{name}");
            let Some((dtype, found)) = file.info(&tensor) else {
                return Err(bad(tensor, "is missing".to_owned()));
            };
            let mut expected = shape.to_vec();
            if is_dense(name) {
                expected.reverse();
            }
            if found != expected {
                let message = format!("has shape {found:?}, the trained parameter {expected:?}");
                return Err(bad(tensor, message));
            }
            let bytes = file.read(&tensor)?;
            let numbers = numbers(dtype, &bytes).map_err(|m| bad(tensor.clone(), m))?;
            if numbers.iter().any(|x| !x.is_finite()) {
                return Err(bad(tensor, "holds a number that is not finite".to_owned()));
            }
            Ok(if is_dense(name) {
                transpose(&numbers, expected[0], expected[1])
            } else {
                numbers
            })
        };
        let all: Vec<_> = shapes.into_iter().collect();
        let all = all.into_par_iter().map(|(name, shape)| {
            let first = read(MOMENTS[0], &name, &shape)?;
            let second = read(MOMENTS[1], &name, &shape)?;
            let moments = Moments {
                shape,
                first,
                second,
            };
            Ok((name, moments))
        });
        // Of several bad ones the first is named, whoever was faster.
        let all: Vec<Result<_>> = all.collect();
        let moments = all.into_iter().collect::<Result<_>>()?;
        Ok(AdamWState { step, moments })
    }
}

/// An optimizer step that has begun.
pub(crate) struct Step<'a> {
    options: &'a AdamW,
    clip_scale: f64,
    lr: f64,
    /// Counted from 1.
    number: u64,
}

impl Step<'_> {
    /// The constants for a parameter of this shape.
    pub(crate) fn pass(&self, shape: &[usize]) -> Pass {
        let options = self.options;
        let exponent = i32::try_from(self.number).unwrap_or(i32::MAX);
        let (beta1, beta2) = options.betas;
        let decays = !(options.decay_excludes_norms_and_biases && shape.len() == 1);
        Pass {
            clip_scale: self.clip_scale as f32,
            rate1: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            rate2: (1.0 - beta2) as f32,
            keep: if decays {
                (1.0 - self.lr * options.weight_decay) as f32
            } else {
                1.0
            },
            step_size: (self.lr / (1.0 - beta1.powi(exponent))) as f32,
            inverse_root: (1.0 / (1.0 - beta2.powi(exponent)).sqrt()) as f32,
            eps: options.eps as f32,
        }
    }
}

/// The constants of one parameter's pass.
pub(crate) struct Pass {
    clip_scale: f32,
    rate1: f32,
    beta2: f32,
    rate2: f32,
    /// 1 − lr · decay.
    keep: f32,
    /// lr / (1 − β₁ᵗ)
    step_size: f32,
    /// 1 / √(1 − β₂ᵗ)
    inverse_root: f32,
    eps: f32,
}

impl Pass {
    /// In the argument order of the kernel `adamw`.
    pub(crate) fn constants(&self) -> [f32; 8] {
        [
            self.clip_scale,
            self.rate1,
            self.beta2,
            self.rate2,
            self.keep,
            self.step_size,
            self.inverse_root,
            self.eps,
        ]
    }

    /// Overwrites `gradient` with the new weights; says whether all of them are finite.
    fn run(&self, weights: &[f32], gradient: &mut [f32], moments: &mut Moments) -> bool {
        let largest = vectorised(
            #[inline(always)]
            || {
                let mut largest = 0;
                let state = moments.first.iter_mut().zip(moments.second.iter_mut());
                for ((w, g), (m, v)) in weights.iter().zip(gradient).zip(state) {
                    let clipped = *g * self.clip_scale;
                    *m = self.rate1.mul_add(clipped - *m, *m);
                    *v = self.beta2.mul_add(*v, self.rate2 * clipped * clipped);
                    let root = v.sqrt().mul_add(self.inverse_root, self.eps);
                    *g = w.mul_add(self.keep, -(self.step_size * *m / root));
                    largest = largest.max(g.to_bits() & 0x7fff_ffff);
                }
                largest
            },
        );
        largest < f32::INFINITY.to_bits()
    }
}
