//! Kernels on rows that the test policies do not produce: long ones, wide ones, extreme numbers.

use super::ORDERS;
use crate::Dtype;
use crate::gpu::backend::{Argument, Gpu, Launch};
use crate::gpu::emulator::{Order, emulated};
use crate::kernels::distribution::Distribution;
use crate::kernels::pointwise;
use crate::tests::{Random, relative_error};

fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    (0..count).map(|_| 4.0 * random.unit() - 2.0).collect()
}

/// The result of `work` on an emulated GPU, which must be the same in both orders.
fn in_both_orders<T: PartialEq>(work: impl Fn(&Gpu) -> T) -> T {
    let [one, other] = ORDERS.map(|order| work(&super::gpu(order, Dtype::F32)));
    assert!(one == other, "a barrier is missing");
    one
}

fn assert_near(found: &[f32], expected: &[f32]) {
    let error = relative_error(found, expected);
    assert!(error < 1e-5, "{error}");
}

#[test]
fn norms_of_any_width_and_their_derivatives() {
    for (rows, width) in [(1, 3), (5, 128), (150, 300)] {
        let (x, weight, grad) = (
            numbers(rows * width, 1),
            numbers(width, 2),
            numbers(rows * width, 3),
        );
        let [y, by_x, by_weight] = in_both_orders(|gpu| {
            let matrix = |x: &[f32]| gpu.upload_matrix(x, width).unwrap();
            let (x, grad, weight) = (matrix(&x), matrix(&grad), gpu.upload(&weight).unwrap());
            let y = x.all().norm(&weight, 1e-6).unwrap();
            let mut by_x = gpu.matrix(rows, width).unwrap();
            let by_weight = (x.all()).norm_backward(&weight, &grad, 1e-6, &mut by_x, false);
            let by_weight = by_weight.unwrap().download(width).unwrap();
            [y.download().unwrap(), by_x.download().unwrap(), by_weight]
        });
        assert_near(&y, &pointwise::rms_norm(&x, &weight, 1e-6));
        let mut expected_x = vec![0.0; x.len()];
        let expected_weight =
            pointwise::rms_norm_backward(&x, &weight, &grad, 1e-6, &mut expected_x);
        assert_near(&by_x, &expected_x);
        assert_near(&by_weight, &expected_weight);
    }
}

/// Heads that are some columns of wider rows; the derivative is accumulated.
#[test]
fn norms_of_heads_among_other_columns() {
    let (rows, wide, first, heads, width) = (9, 40, 5, 3, 7);
    let (x, weight) = (numbers(rows * wide, 1), numbers(width, 2));
    let (grad, before) = (
        numbers(rows * heads * width, 3),
        numbers(rows * heads * width, 4),
    );
    let [y, by_x, by_weight] = in_both_orders(|gpu| {
        let x = gpu.upload_matrix(&x, wide).unwrap();
        let columns = x.columns(first, heads * width);
        let upload = |numbers: &[f32]| gpu.upload_matrix(numbers, heads * width).unwrap();
        let (grad, mut by_x) = (upload(&grad), upload(&before));
        let weight = gpu.upload(&weight).unwrap();
        let y = columns.norm(&weight, 1e-6).unwrap();
        let by_weight = columns.norm_backward(&weight, &grad, 1e-6, &mut by_x, true);
        let by_weight = by_weight.unwrap().download(width).unwrap();
        [y.download().unwrap(), by_x.download().unwrap(), by_weight]
    });
    let own = x
        .chunks(wide)
        .flat_map(|row| &row[first..][..heads * width]);
    let own: Vec<f32> = own.copied().collect();
    assert_near(&y, &pointwise::rms_norm(&own, &weight, 1e-6));
    let mut expected = vec![0.0; own.len()];
    let expected_weight = pointwise::rms_norm_backward(&own, &weight, &grad, 1e-6, &mut expected);
    let added = expected.iter().zip(&before).map(|(new, old)| old + new);
    assert_near(&by_x, &added.collect::<Vec<_>>());
    assert_near(&by_weight, &expected_weight);
}

#[test]
fn activations_and_their_derivatives() {
    let (gate, up, grad) = (numbers(1000, 1), numbers(1000, 2), numbers(1000, 3));
    let [y, by_gate, by_up] = in_both_orders(|gpu| {
        let rows = gate.chunks(10).zip(up.chunks(10));
        let rows: Vec<f32> = rows.flat_map(|(gate, up)| [gate, up].concat()).collect();
        let gate_and_up = gpu.upload_matrix(&rows, 20).unwrap();
        let grad = gpu.upload_matrix(&grad, 10).unwrap();
        let [by_gate, by_up] = gate_and_up.swiglu_backward(&grad).unwrap();
        let y = gate_and_up.swiglu().unwrap();
        [y, by_gate, by_up].map(|x| x.download().unwrap())
    });
    assert_near(&y, &pointwise::swiglu(gate.clone(), &up));
    let (mut expected_gate, mut expected_up) = (gate, up);
    pointwise::swiglu_backward(&mut expected_gate, &mut expected_up, &grad);
    assert_near(&by_gate, &expected_gate);
    assert_near(&by_up, &expected_up);
}

/// Targets, scaled logits and numbers at every edge of a row.
#[test]
fn ids_are_drawn_where_the_processor_draws_them() {
    let vocabulary = 1000;
    let mut rows = numbers(8 * vocabulary, 4);
    // Two equal maxima; almost all probability on the last id; all of it on one id.
    rows[700] = 9.0;
    rows[300] = 9.0;
    rows[vocabulary * 2 - 1] = 60.0;
    rows[2 * vocabulary..3 * vocabulary].fill(-1e4);
    rows[2 * vocabulary + 5] = 0.0;
    let draws = [-1.0, 0.0, 0.5, 1e-9, 0.25, 0.75, 1.0 - 1e-16, -2.0 - 17.0];
    let scale = 1.0 / 0.7;
    let (ids, log_probs, entropies) = in_both_orders(|gpu| {
        let logits = gpu.upload_matrix(&rows, vocabulary).unwrap();
        let (draws, scales) = (
            gpu.upload(&draws).unwrap(),
            gpu.upload(&[scale; 8]).unwrap(),
        );
        let (ids, log_probs) = (gpu.buffer::<u32>(8).unwrap(), gpu.buffer::<f32>(8).unwrap());
        let entropies = gpu.buffer::<f32>(8).unwrap();
        let arguments = [
            logits.pointer(),
            draws.pointer(),
            scales.pointer(),
            ids.pointer(),
            log_probs.pointer(),
            entropies.pointer(),
            Argument::Int(vocabulary as i32),
        ];
        launch(gpu, "sample", (8, 1), 256, &arguments).unwrap();
        (
            ids.download(8).unwrap(),
            log_probs.download(8).unwrap(),
            entropies.download(8).unwrap(),
        )
    });
    for (row, (logits, &number)) in rows.chunks(vocabulary).zip(&draws).enumerate() {
        let distribution = Distribution::of(logits, scale);
        let weights = distribution.weights(logits);
        let total: f64 = weights.iter().map(|&w| f64::from(w)).sum();
        let mut sum = 0.0;
        let passed = weights.iter().position(|&weight| {
            sum += f64::from(weight);
            sum > number * total
        });
        let expected = match number {
            -1.0 => 300,
            -19.0 => 17,
            _ => passed.unwrap(),
        };
        assert_eq!(ids[row] as usize, expected, "row {row}");
        let log_prob = distribution.log_prob(logits[expected]);
        assert!((log_probs[row] - log_prob).abs() < 1e-5, "row {row}");
        let entropy = distribution.entropy;
        assert!((entropies[row] - entropy).abs() < 1e-5, "row {row}");
    }
    assert_eq!(ids[2], 5);
}

#[test]
fn rows_of_one_id_are_added_up_and_columns_summed() {
    let (rows, width) = (150, 3);
    let x = numbers(rows * width, 5);
    let (by_id, sums) = in_both_orders(|gpu| {
        let matrix = gpu.upload_matrix(&x, width).unwrap();
        let to = gpu.zeros::<f32>(10 * width).unwrap();
        let (ids, starts) = (
            gpu.upload(&[2_u32, 7]).unwrap(),
            gpu.upload(&[0_u32, 3, 4]).unwrap(),
        );
        let order = gpu.upload(&[0_u32, 9, 149, 4]).unwrap();
        let arguments = [
            matrix.pointer(),
            ids.pointer(),
            starts.pointer(),
            order.pointer(),
            to.pointer(),
            Argument::Int(width as i32),
        ];
        launch(gpu, "sum_rows_by_id", (2, 1), 128, &arguments).unwrap();
        let sums = matrix.column_sums().unwrap();
        (to.download(30).unwrap(), sums.download(width).unwrap())
    });
    let row = |row: usize, column: usize| x[row * width + column];
    for column in 0..width {
        let sum = row(0, column) + row(9, column) + row(149, column);
        assert_eq!(by_id[2 * width + column], sum);
        assert_eq!(by_id[7 * width + column], row(4, column));
    }
    assert!(by_id.iter().filter(|&&x| x != 0.0).count() <= 2 * width);
    assert_near(&sums, &pointwise::column_sums(&x, width));
}

fn launch(
    gpu: &Gpu,
    kernel: &'static str,
    grid: (usize, usize),
    block: u32,
    arguments: &[Argument],
) -> crate::Result<()> {
    gpu.launch(&Launch {
        kernel,
        grid,
        block,
        shared: 0,
        arguments,
    })
}

/// The same where every access is looked at, in a process of its own.
#[test]
fn faulty_accesses_are_found() {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        "gpu::tests::kernels::says_what_accesses_are_wrong",
    ]);
    command.args(["--ignored", "--nocapture"]);
    let output = command.env("AGENTGYM_EMULATOR_ACCESSES", "1").output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    for expected in [
        "add_assign: done",
        "lacks_a_barrier: a race with",
        "writes_twice: a race with a write",
        "reads_past_the_end: an access out of range",
        "takes_over: a read of shared memory that the block did not write",
        "meets_other_blocks: a race with a",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

#[test]
#[ignore = "the other process of the test above"]
fn says_what_accesses_are_wrong() {
    let gpu = emulated(Order::Ascending, Dtype::F32);
    let x = gpu.upload(&[1.0_f32; 128]).unwrap();
    x.add(&x).unwrap();
    println!("add_assign: done");
    for (kernel, blocks) in [
        ("lacks_a_barrier", 1),
        ("writes_twice", 1),
        ("takes_over", 2),
        ("meets_other_blocks", 2),
    ] {
        let done = launch(&gpu, kernel, (blocks, 1), 64, &[x.pointer()]);
        println!("{}", done.unwrap_err());
    }
    let last = x.pointer_at(64);
    let done = launch(&gpu, "reads_past_the_end", (1, 1), 64, &[last]);
    println!("{}", done.unwrap_err());
}

/// The emulator must detect these faults.
#[test]
fn faulty_kernels_and_launches_are_found() {
    if std::env::var_os("AGENTGYM_EMULATOR_ACCESSES").is_some() {
        return;
    }
    let faulty = |order: Order, kernel: &'static str| {
        let gpu = emulated(order, Dtype::F32);
        let x = gpu.upload(&[1.0_f32; 64]).unwrap();
        launch(&gpu, kernel, (1, 1), 64, &[x.pointer()]).map(|()| x.download(64).unwrap())
    };
    let [one, other] = ORDERS.map(|order| faulty(order, "lacks_a_barrier").unwrap());
    assert!(one != other);
    let complaint = |kernel| faulty(Order::Ascending, kernel).unwrap_err().to_string();
    let found = complaint("meets_half_a_barrier");
    assert!(found.contains("not all threads reach a barrier"), "{found}");
    let found = complaint("writes_past_the_end");
    assert!(found.contains("wrote outside of its buffers"), "{found}");
    let found = complaint("reads_a_crooked_vector");
    assert!(found.contains("no multiple of its size"), "{found}");
    let gpu = emulated(Order::Ascending, Dtype::F32);
    for (grid, block) in [((1, 1), 2048), ((1, 1 << 16), 64), ((1 << 31, 1), 64)] {
        let found = launch(&gpu, "scale", grid, block, &[])
            .unwrap_err()
            .to_string();
        assert!(found.contains("no GPU launches"), "{found}");
    }
    let found = complaint("scale");
    assert!(found.contains("takes other arguments"), "{found}");
    let found = complaint("no_such_kernel");
    assert!(found.contains("no kernel no_such_kernel"), "{found}");
    // An aborted launch does not affect later ones.
    assert!(faulty(Order::Ascending, "lacks_a_barrier").unwrap() == one);
}
