//! Tiles of a product by AMX, the matrix unit of some processors: up to 32 rows by two panels.

use super::tile::{BLOCK, PANEL, Tile, add_block, plainly};
use std::sync::OnceLock;

/// Rows of one of its registers.
const ROWS: usize = 16;

/// What can be said of the unit here.
#[derive(Debug)]
enum State {
    /// The processor has none.
    Absent,
    /// It has one that must not be used, and why.
    Refused(String),
    Ready,
}

/// Asks the processor and the kernel, once for the process.
fn state() -> &'static State {
    static STATE: OnceLock<State> = OnceLock::new();
    STATE.get_or_init(|| {
        if !instructions::are_there() {
            return State::Absent;
        }
        if let Err(why) = instructions::permitted() {
            return State::Refused(format!("the kernel does not permit it: {why}"));
        }
        match agrees(|tile, shape| {
            // SAFETY: the kernel permits the unit, and the tile has its output.
            unsafe { instructions::compute(tile, shape) }
        }) {
            true => State::Ready,
            false => State::Refused("it adds otherwise than its manual says".to_owned()),
        }
    })
}

/// Whether this process may use the unit.
pub(super) fn is_ready() -> bool {
    matches!(state(), State::Ready)
}

/// Why the unit that this processor has is not used.
pub(crate) fn refusal() -> Option<&'static str> {
    match state() {
        State::Refused(why) => Some(why),
        State::Absent | State::Ready => None,
    }
}

/// Whether a product of numbers of many sizes, some too small for their products, is the plain one
/// bit for bit.
fn agrees(compute: impl Fn(&Tile<'_>, &mut Shape)) -> bool {
    const COUNT: usize = ROWS + 3;
    const PAIRS: usize = 2 * BLOCK;
    const COLUMNS: usize = PANEL + 5;
    let number = |at: usize, row: usize| {
        let mixed = (at as u32 + 1).wrapping_mul(0x9e37_79b1);
        let exponent = [120, 60, 20][row % 3] + (mixed >> 8 & 7);
        (mixed & 1) << 15 | exponent << 7 | mixed >> 16 & 0x7f
    };
    let two = |at: usize, row: usize| number(2 * at, row) | number(2 * at + 1, row) << 16;
    let left: Vec<u32> = (0..COUNT * PAIRS).map(|i| two(i, i / PAIRS)).collect();
    let line = |line: usize| std::array::from_fn(|c| two(7919 + line * PANEL + c, c));
    let right: Vec<[u32; PANEL]> = (0..2 * PAIRS).map(line).collect();
    let before: Vec<f32> = (0..COUNT * COLUMNS)
        .map(|i| f32::from_bits(two(104_729 + i, i)))
        .collect();
    let [found, expected] = [true, false].map(|by_unit| {
        let mut output = before.clone();
        let tile = Tile {
            left: &left,
            strides: [PAIRS, 1],
            rows: COUNT,
            right: &right,
            panel_lines: PAIRS,
            panels: 2,
            pairs: PAIRS,
            output: output.as_mut_ptr(),
            columns: [COLUMNS; 2],
            accumulate: true,
        };
        match by_unit {
            true => compute(&tile, &mut Shape::default()),
            // SAFETY: the output is as large as the tile.
            false => unsafe { plainly(&tile, BLOCK, add_block) },
        }
        output
    });
    let bits = |numbers: Vec<f32>| numbers.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    bits(found) == bits(expected)
}

/// Rows and bytes of the unit's registers, as it reads them; what it was given last.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(64))]
pub(super) struct Registers {
    palette: u8,
    start: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// The shape that this thread has given its registers; gives them back at the end, so that the kernel
/// need not save them.
#[derive(Debug, Default)]
pub(super) struct Shape(Option<Registers>);

impl Drop for Shape {
    fn drop(&mut self) {
        if self.0.is_some() {
            instructions::release();
        }
    }
}

pub(super) use instructions::compute;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod instructions {
    use super::{BLOCK, PANEL, ROWS, Registers, Shape, Tile};
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid, __cpuid_count};

    /// AMX-TILE and AMX-BF16 of leaf 7.
    pub(super) fn are_there() -> bool {
        __cpuid(0).eax >= 7 && {
            let features = __cpuid_count(7, 0).edx;
            features >> 24 & features >> 22 & 1 == 1
        }
    }

    /// Asks the kernel for the registers' memory, for all threads of the process.
    pub(super) fn permitted() -> std::io::Result<()> {
        const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
        const XFEATURE_XTILEDATA: libc::c_long = 18;
        // SAFETY: the call reads and writes no memory of the process.
        let refused = unsafe {
            libc::syscall(
                libc::SYS_arch_prctl,
                ARCH_REQ_XCOMP_PERM,
                XFEATURE_XTILEDATA,
            )
        };
        match refused {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    pub(super) fn release() {
        // SAFETY: the instruction ran before, and nothing is expected in the registers.
        unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
    }

    /// Registers 0 to 3 hold the sums of two times two tiles, 4 and 5 rows, 6 and 7 panels.
    ///
    /// # Safety
    /// The process may use the unit; else as for `tile::plainly`.
    pub(in super::super) unsafe fn compute(tile: &Tile<'_>, shape: &mut Shape) {
        let blocks = tile.pairs / BLOCK;
        let last = (tile.rows - 1) * tile.strides[0] + tile.pairs;
        assert!(tile.strides[1] == 1 && blocks * BLOCK == tile.pairs);
        assert!(tile.rows <= 2 * ROWS && last <= tile.left.len());
        let lines = (tile.panels - 1) * tile.panel_lines + tile.pairs;
        assert!(tile.panels <= 2 && lines <= tile.right.len());
        let wanted = registers(tile);
        if shape.0 != Some(wanted) {
            // SAFETY: `wanted` is a palette of the unit.
            unsafe {
                asm!("ldtilecfg [{}]", in(reg) &raw const wanted, options(readonly, nostack))
            };
            shape.0 = Some(wanted);
        }
        // SAFETY: the caller's promise.
        unsafe {
            match (tile.rows > ROWS, tile.panels > 1) {
                (false, false) => sums::<1, 1>(tile, blocks),
                (false, true) => sums::<1, 2>(tile, blocks),
                (true, false) => sums::<2, 1>(tile, blocks),
                (true, true) => sums::<2, 2>(tile, blocks),
            }
        }
    }

    fn registers(tile: &Tile<'_>) -> Registers {
        let mut registers = Registers {
            palette: 1,
            ..Registers::default()
        };
        let mut set = |register: usize, rows: usize, columns: usize| {
            if rows > 0 && columns > 0 {
                registers.rows[register] = rows as u8;
                registers.row_bytes[register] = 4 * columns as u16;
            }
        };
        for half in 0..2 {
            let rows = tile.rows.saturating_sub(half * ROWS).min(ROWS);
            let columns = |panel: usize| tile.columns[0].saturating_sub(panel * PANEL).min(PANEL);
            set(2 * half, rows, columns(0));
            set(2 * half + 1, rows, columns(1));
            set(4 + half, rows, BLOCK);
            set(6 + half, BLOCK, columns(half));
        }
        registers
    }

    #[inline]
    unsafe fn sums<const R: usize, const C: usize>(tile: &Tile<'_>, blocks: usize) {
        let place = |r: usize, c: usize| {
            let at = r * ROWS * tile.columns[1] + c * PANEL;
            tile.output.wrapping_add(at)
        };
        let across = 4 * tile.columns[1];
        let down = 4 * tile.strides[0];
        // SAFETY: the registers have the shape of the tile, whose output is the caller's; rows and
        // lines that are read are inside both slices, as asserted.
        unsafe {
            begin::<0>(tile.accumulate, place(0, 0), across);
            if C > 1 {
                begin::<1>(tile.accumulate, place(0, 1), across);
            }
            if R > 1 {
                begin::<2>(tile.accumulate, place(1, 0), across);
            }
            if R > 1 && C > 1 {
                begin::<3>(tile.accumulate, place(1, 1), across);
            }
            let row = |r: usize| tile.left.as_ptr().wrapping_add(r * ROWS * tile.strides[0]);
            let panel = |c: usize| tile.right.as_ptr().wrapping_add(c * tile.panel_lines);
            for block in 0..blocks {
                let row = |r: usize| row(r).wrapping_add(block * BLOCK);
                let panel = |c: usize| panel(c).wrapping_add(block * BLOCK);
                load::<4>(row(0).cast(), down);
                load::<6>(panel(0).cast(), 4 * PANEL);
                multiply::<0, 4, 6>();
                if C > 1 {
                    load::<7>(panel(1).cast(), 4 * PANEL);
                    multiply::<1, 4, 7>();
                }
                if R > 1 {
                    load::<5>(row(1).cast(), down);
                    multiply::<2, 5, 6>();
                }
                if R > 1 && C > 1 {
                    multiply::<3, 5, 7>();
                }
            }
            store::<0>(place(0, 0), across);
            if C > 1 {
                store::<1>(place(0, 1), across);
            }
            if R > 1 {
                store::<2>(place(1, 0), across);
            }
            if R > 1 && C > 1 {
                store::<3>(place(1, 1), across);
            }
        }
    }

    /// Sums that go on, or begin at zero.
    #[inline(always)]
    unsafe fn begin<const SUMS: u8>(go_on: bool, from: *const f32, stride: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match go_on {
                true => load::<SUMS>(from.cast(), stride),
                false => {
                    asm!("tilezero tmm{}", const SUMS, options(nomem, nostack, preserves_flags))
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn load<const REGISTER: u8>(from: *const u8, stride: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            asm!(
                "tileloadd tmm{}, [{} + {}]", const REGISTER, in(reg) from, in(reg) stride,
                options(readonly, nostack, preserves_flags)
            );
        }
    }

    #[inline(always)]
    unsafe fn multiply<const SUMS: u8, const ROWS: u8, const PANEL: u8>() {
        // SAFETY: the caller's promise.
        unsafe {
            asm!(
                "tdpbf16ps tmm{}, tmm{}, tmm{}", const SUMS, const ROWS, const PANEL,
                options(nomem, nostack, preserves_flags)
            );
        }
    }

    #[inline(always)]
    unsafe fn store<const SUMS: u8>(to: *mut f32, stride: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            asm!(
                "tilestored [{} + {}], tmm{}", in(reg) to, in(reg) stride, const SUMS,
                options(nostack, preserves_flags)
            );
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod instructions {
    use super::{Shape, Tile};

    pub(super) fn are_there() -> bool {
        false
    }

    pub(super) fn permitted() -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    pub(super) fn release() {}

    pub(in super::super) unsafe fn compute(_: &Tile<'_>, _: &mut Shape) {
        unreachable!("the unit is not there");
    }
}

#[cfg(test)]
mod tests {
    use super::super::tile::add_pair;
    use super::*;

    #[test]
    fn a_unit_that_adds_otherwise_is_not_used() {
        // SAFETY: the output is as large as the tile.
        let by_blocks = |tile: &Tile<'_>, _: &mut Shape| unsafe { plainly(tile, BLOCK, add_block) };
        assert!(agrees(by_blocks));
        // SAFETY: as above.
        let by_pairs = |tile: &Tile<'_>, _: &mut Shape| unsafe {
            plainly(tile, 1, |sum, pairs| add_pair(sum, pairs[0]));
        };
        assert!(!agrees(by_pairs));
        // SAFETY: as above.
        let by_longer_blocks = |tile: &Tile<'_>, _: &mut Shape| unsafe {
            plainly(tile, 2 * BLOCK, add_block);
        };
        assert!(!agrees(by_longer_blocks));
        // Numbers too small for their products are added where they should be zero.
        let with_subnormals = |tile: &Tile<'_>, _: &mut Shape| unsafe {
            // SAFETY: as above.
            plainly(tile, BLOCK, |sum, block| {
                let exact = |second: bool| {
                    let shift = if second { 0 } else { 16 };
                    let number = |pair: u32| f32::from_bits(pair << shift & 0xffff_0000);
                    block
                        .iter()
                        .fold(0.0_f32, |sum, &[a, b]| number(a).mul_add(number(b), sum))
                };
                sum + (exact(false) + exact(true))
            });
        };
        assert!(!agrees(with_subnormals));
        eprintln!("AMX: {:?}", state());
        // What this machine has, if it has one, is the manual's.
        assert_eq!(is_ready(), instructions::are_there() && refusal().is_none());
    }
}
