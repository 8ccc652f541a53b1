//! Products whose right results are known: where every number is one, each is as large as its sum
//! is long.

use crate::Dtype;
use crate::gpu::Gradients;
use crate::gpu::emulator::Order;
use crate::gpu::products::Dense;

/// Numbers of rows, around whole tiles.
const ROWS: [usize; 4] = [1, 127, 200, 1000];

/// Inner and width of weights; on a GPU those of models of 0.5 and 3 billion parameters.
fn weights() -> &'static [(usize, usize)] {
    match std::env::var_os("AGENTGYM_TEST_GPU") {
        None => &[(33, 70)],
        Some(_) => &[
            (896, 1152),
            (896, 9728),
            (4864, 896),
            (2048, 2560),
            (2048, 22016),
            (11008, 2048),
            (2048, 151_936),
        ],
    }
}

#[test]
fn products_of_ones_are_as_long_as_their_sums() {
    for dtype in Dtype::ALL {
        let gpu = super::gpu(Order::Ascending, dtype);
        for (&(inner, width), rows) in weights().iter().flat_map(|w| ROWS.map(|rows| (w, rows))) {
            let ones = |width: usize| {
                let ones = gpu.upload_matrix(&vec![1.0; rows * width], width).unwrap();
                // The copy's padding is whatever was in memory.
                ones.operands().unwrap().part(0, rows).unwrap()
            };
            let all_are = |found: Vec<f32>, expected: usize, what: &str| {
                let other = found.iter().position(|&x| x != expected as f32);
                let other = other.map(|at| (at, found[at]));
                assert!(
                    other.is_none(),
                    "{dtype} {what} of {rows}×{inner}×{width}: {other:?}"
                );
            };
            let (x, grad) = (ones(inner), ones(width));
            let weight = gpu.upload_operands(&vec![1.0; inner * width]).unwrap();
            let weight = Dense::new(&weight, inner, width);
            let [y, by_x] = [x.times(weight), grad.times_transposed(weight)];
            all_are(y.unwrap().download().unwrap(), inner, "product");
            all_are(by_x.unwrap().download().unwrap(), width, "derivative by x");
            let mut gradients = Gradients::new();
            for times in 1..3 {
                x.derive_weight(&grad, "w", &mut gradients).unwrap();
                let found = gradients["w"].download(inner * width).unwrap();
                all_are(found, times * rows, "derivative by the weight");
            }
        }
    }
}
