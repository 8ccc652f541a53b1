//! TensorBoard event files: a TFRecord frame around a protobuf `Event`. It takes only two message
//! types and a few fields, so a protobuf library is not worth the dependency.
//!
//! Field numbers are those of TensorFlow's `event.proto` and `summary.proto`:
//! Event {1 wall_time double, 2 step int64, 3 file_version string, 5 summary},
//! Summary {1 repeated Value}, Value {1 tag string, 2 simple_value float}.

/// Scalars of one step.
#[derive(Debug, Clone, PartialEq)]
pub struct Scalars {
    /// Seconds since 1970.
    pub wall_time_s: f64,
    /// The iteration.
    pub step: u32,
    /// (tag, value).
    pub values: Vec<(String, f64)>,
}

/// The content of an event file.
pub fn events(all: &[Scalars]) -> Vec<u8> {
    let first = all.first().map_or(0.0, |s| s.wall_time_s);
    let mut out = Vec::new();
    let mut head = Vec::new();
    double(&mut head, 1, first);
    bytes(&mut head, 3, b"brain.Event:2");
    frame(&mut out, &head);
    for scalars in all.iter().filter(|s| !s.values.is_empty()) {
        frame(&mut out, &event(scalars));
    }
    out
}

fn event(scalars: &Scalars) -> Vec<u8> {
    let mut summary = Vec::new();
    for (tag, number) in &scalars.values {
        let mut value = Vec::new();
        bytes(&mut value, 1, tag.as_bytes());
        float(&mut value, 2, *number as f32);
        bytes(&mut summary, 1, &value);
    }
    let mut out = Vec::new();
    double(&mut out, 1, scalars.wall_time_s);
    key(&mut out, 2, 0);
    varint(&mut out, u64::from(scalars.step));
    bytes(&mut out, 5, &summary);
    out
}

/// Length, its checksum, the record, its checksum; little-endian.
fn frame(out: &mut Vec<u8>, record: &[u8]) {
    let length = (record.len() as u64).to_le_bytes();
    out.extend_from_slice(&length);
    out.extend_from_slice(&masked_crc(&length).to_le_bytes());
    out.extend_from_slice(record);
    out.extend_from_slice(&masked_crc(record).to_le_bytes());
}

/// TFRecord masks its CRCs, because a CRC over data that contains CRCs is weak.
fn masked_crc(data: &[u8]) -> u32 {
    const MASK_DELTA: u32 = 0xa282_ead8;
    crc32c::crc32c(data)
        .rotate_right(15)
        .wrapping_add(MASK_DELTA)
}

fn key(out: &mut Vec<u8>, field: u32, wire_type: u32) {
    varint(out, u64::from(field << 3 | wire_type));
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn double(out: &mut Vec<u8>, field: u32, value: f64) {
    key(out, field, 1);
    out.extend_from_slice(&value.to_le_bytes());
}

fn float(out: &mut Vec<u8>, field: u32, value: f32) {
    key(out, field, 5);
    out.extend_from_slice(&value.to_le_bytes());
}

fn bytes(out: &mut Vec<u8>, field: u32, value: &[u8]) {
    key(out, field, 2);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_tfrecord() {
        // RFC 3720's check value of CRC-32C, before and after the mask.
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
        let expected = 0xe306_9283u32.rotate_right(15).wrapping_add(0xa282_ead8);
        assert_eq!(masked_crc(b"123456789"), expected);
    }

    #[test]
    fn the_bytes_of_one_scalar() {
        let scalars = Scalars {
            wall_time_s: 2.0,
            step: 300,
            values: vec![("a".into(), 0.5)],
        };
        let expected: &[u8] = &[
            0x09, 0, 0, 0, 0, 0, 0, 0, 0x40, // wall_time 2.0
            0x10, 0xac, 0x02, // step 300
            0x2a, 0x0a, 0x0a, 0x08, // summary of 10 bytes, value of 8
            0x0a, 0x01, b'a', // tag
            0x15, 0, 0, 0, 0x3f, // 0.5
        ];
        assert_eq!(event(&scalars), expected);
    }

    #[test]
    fn frames_can_be_walked() {
        let one = |step| Scalars {
            wall_time_s: 1.0,
            step,
            values: vec![("train/success".into(), 0.25)],
        };
        let file = events(&[one(1), one(2)]);
        let mut rest = file.as_slice();
        let mut records = 0;
        while !rest.is_empty() {
            let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            let crc = u32::from_le_bytes(rest[12 + length..16 + length].try_into().unwrap());
            assert_eq!(crc, masked_crc(&rest[12..12 + length]));
            rest = &rest[16 + length..];
            records += 1;
        }
        assert_eq!(records, 3, "the version and two steps");
    }
}
