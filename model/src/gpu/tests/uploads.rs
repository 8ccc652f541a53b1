//! Uploads through the ring of page-locked memory: no source changes before its copy is done.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::gpu::backend::Backend as _;
use crate::gpu::emulator::{Emulator, Order, emulated};
use crate::gpu::staging::{Ring, Transfers as _};
use crate::{Dtype, Result};

fn emulator() -> Emulator {
    Emulator::new(Order::Ascending, Dtype::F32, Arc::default())
}

fn read(device: &Emulator, from: u64, bytes: usize) -> Result<Vec<u8>> {
    let mut found = vec![0; bytes];
    device.download(from, &mut found).map(|()| found)
}

/// Lengths around the ring's halves, which have 1024 numbers each, and several times round it.
#[test]
fn uploads_of_any_length_arrive_whole() {
    let gpu = super::gpu(Order::Ascending, Dtype::F32);
    for length in [1, 1023, 1024, 1025, 2048, 5000, 40_000] {
        let numbers: Vec<f32> = (0..length).map(|at| (at * 7 + length) as f32).collect();
        // Many small ones in front, which a device may still have to copy.
        let small: Vec<_> = (0..50_u32).map(|n| gpu.upload(&[n; 9]).unwrap()).collect();
        let buffer = gpu.upload(&numbers).unwrap();
        assert!(buffer.download(length).unwrap() == numbers, "{length}");
        for (n, buffer) in small.iter().enumerate() {
            assert_eq!(buffer.download(9).unwrap(), [n as u32; 9]);
        }
    }
}

/// Overwriting and freeing a buffer are work behind its copy.
#[test]
fn a_copy_comes_before_the_work_that_was_asked_for_after_it() {
    let gpu = emulated(Order::Ascending, Dtype::F32);
    let buffer = gpu.upload(&[1.0_f32; 3000]).unwrap();
    buffer.clear_from(1000).unwrap();
    let expected: Vec<f32> = (0..3000).map(|at| f32::from(at < 1000_u16)).collect();
    assert_eq!(buffer.download(3000).unwrap(), expected);
    drop(gpu.upload(&[2.0_f32; 3000]).unwrap());
    let other = gpu.upload(&[3.0_f32; 3000]).unwrap();
    assert_eq!(other.download(1).unwrap(), [3.0]);
}

/// The emulated device sees what a GPU would not report: a source that changes too early, or that
/// the GPU may not read later.
#[test]
fn a_source_that_changes_before_its_copy_is_done_is_reported() {
    let device = emulator();
    let place = device.allocate(16).unwrap();
    let memory = device.pinned(16).unwrap();
    device.start_copy(memory, place, 16).unwrap();
    device.mark(0).unwrap();
    device.wait(1).unwrap();
    // SAFETY: the memory has 16 bytes. Its copy was not waited for: the other half's was.
    unsafe { memory.write(1) };
    let spoiled = read(&device, place, 16).unwrap_err().to_string();
    assert!(spoiled.contains("the source of 1 copies"), "{spoiled}");

    let mut own = [0_u8; 16];
    let pageable = NonNull::from(&mut own).cast();
    let refused = emulator();
    let place = refused.allocate(16).unwrap();
    let refused = refused.start_copy(pageable, place, 16).unwrap_err();
    assert!(refused.to_string().contains("not page-locked"), "{refused}");

    // The ring itself waits for a half before it fills it again.
    let device = emulator();
    let place = device.allocate(64).unwrap();
    let mut ring = Ring::new(8);
    for round in 0..20_u8 {
        ring.upload(&device, &[round; 64], place).unwrap();
    }
    assert_eq!(read(&device, place, 64).unwrap(), [19; 64]);
}
