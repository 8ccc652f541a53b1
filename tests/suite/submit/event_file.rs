//! TensorBoard shows the contents of `metrics.jsonl`. The event file is parsed by a strict reader
//! that shares no code with the writer: TFRecord frames with both masked checksums, then protobuf
//! fields of `event.proto` and `summary.proto`, each of which must be known and have its wire type.

use super::*;
use std::collections::BTreeMap;

/// The place of a scalar: (step, tag).
type Place = (i64, String);

/// CRC-32C (Castagnoli, reflected), bit by bit.
fn crc32c(data: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in data {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            let carry = crc & 1;
            crc >>= 1;
            if carry == 1 {
                crc ^= 0x82f6_3b78;
            }
        }
    }
    !crc
}

/// TFRecord's masking of a checksum.
fn masked(data: &[u8]) -> u32 {
    crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let (head, rest) = self.0.split_at_checked(count).ok_or("cut off")?;
        self.0 = rest;
        Ok(head)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], String> {
        Ok(self.take(N)?.try_into().unwrap())
    }

    fn varint(&mut self) -> Result<u64, String> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = self.fixed()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err("a varint has more than ten bytes".into())
    }

    fn message(&mut self) -> Result<Bytes<'a>, String> {
        let length = self.varint()? as usize;
        Ok(Bytes(self.take(length)?))
    }

    fn text(&mut self) -> Result<String, String> {
        String::from_utf8(self.message()?.0.to_vec()).map_err(|e| e.to_string())
    }

    /// Field number and wire type.
    fn key(&mut self) -> Result<Option<(u64, u64)>, String> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        Ok(Some((key >> 3, key & 7)))
    }

    /// The next TFRecord.
    fn record(&mut self) -> Result<Option<Bytes<'a>>, String> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let length = self.fixed::<8>()?;
        if u32::from_le_bytes(self.fixed()?) != masked(&length) {
            return Err("the checksum of a length is wrong".into());
        }
        let data = self.take(u64::from_le_bytes(length) as usize)?;
        if u32::from_le_bytes(self.fixed()?) != masked(data) {
            return Err("the checksum of a record is wrong".into());
        }
        Ok(Some(Bytes(data)))
    }
}

#[derive(Debug, Default, PartialEq)]
struct Event {
    wall_time_s: f64,
    step: i64,
    version: Option<String>,
    values: Vec<(String, f32)>,
}

fn event(mut bytes: Bytes<'_>) -> Result<Event, String> {
    let mut event = Event::default();
    while let Some(key) = bytes.key()? {
        match key {
            (1, 1) => event.wall_time_s = f64::from_le_bytes(bytes.fixed()?),
            (2, 0) => event.step = bytes.varint()? as i64,
            (3, 2) => event.version = Some(bytes.text()?),
            (5, 2) => {
                let mut summary = bytes.message()?;
                while let Some(key) = summary.key()? {
                    if key != (1, 2) {
                        return Err(format!("field {key:?} of a summary"));
                    }
                    event.values.push(value(summary.message()?)?);
                }
            }
            other => return Err(format!("field {other:?} of an event")),
        }
    }
    Ok(event)
}

fn value(mut bytes: Bytes<'_>) -> Result<(String, f32), String> {
    let (mut tag, mut simple) = (None, None);
    while let Some(key) = bytes.key()? {
        match key {
            (1, 2) => tag = Some(bytes.text()?),
            (2, 5) => simple = Some(f32::from_le_bytes(bytes.fixed()?)),
            other => return Err(format!("field {other:?} of a value")),
        }
    }
    tag.zip(simple)
        .ok_or_else(|| "a value lacks a field".into())
}

fn events(file: &[u8]) -> Result<Vec<Event>, String> {
    let mut bytes = Bytes(file);
    let mut events = Vec::new();
    while let Some(record) = bytes.record()? {
        events.push(event(record)?);
    }
    Ok(events)
}

/// The scalars that the lines of `metrics.jsonl` should give, with their times.
fn expected(lines: &str) -> BTreeMap<Place, (f64, f32)> {
    let mut all = BTreeMap::new();
    for line in lines.lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let stage = row["stage"].as_str().unwrap();
        let cut = ["rollout", "reward", "log_probs", "gradient"].contains(&stage);
        let (head, stats) = match (&row["set"], row["part"].as_u64().unwrap()) {
            (Value::String(set), _) => (format!("{stage}/{set}"), format!("stats/{stage}/{set}")),
            (_, 0) if !cut => (stage.to_owned(), format!("stats/{stage}")),
            (_, part) => {
                let head = format!("parts/{stage}/{part}");
                (head.clone(), format!("{head}/stats"))
            }
        };
        let wall_s = row["wall_s"].as_f64().unwrap_or(0.0);
        let time = row["started_unix_s"].as_f64().unwrap() + wall_s;
        let mut add = |step: &Value, tag: String, number: f64| {
            let place = (step.as_i64().unwrap(), tag);
            let known = all.insert(place.clone(), (time, number as f32));
            assert_eq!(known, None, "{place:?} is there twice");
        };
        for (name, number) in leaves(&row["metrics"]) {
            add(&row["iteration"], format!("{head}/{name}"), number);
        }
        for (name, number) in leaves(&row["stats"]) {
            add(&row["iteration"], format!("{stats}/{name}"), number);
        }
        if row["wall_s"].is_number() {
            add(&row["iteration"], format!("{stats}/wall_s"), wall_s);
        }
        for point in row["metrics"]["curve"].as_array().into_iter().flatten() {
            for (name, number) in leaves(point).into_iter().filter(|(name, _)| name != "step") {
                add(&point["step"], format!("sft_steps/{name}"), number);
            }
        }
    }
    all
}

/// Numbers and flags of nested objects, by path; lists are not scalars.
fn leaves(value: &Value) -> Vec<(String, f64)> {
    let mut found = Vec::new();
    for (name, value) in value.as_object().into_iter().flatten() {
        match value {
            Value::Number(number) => found.push((name.clone(), number.as_f64().unwrap())),
            Value::Bool(flag) => found.push((name.clone(), f64::from(u8::from(*flag)))),
            Value::Object(_) => {
                let below = leaves(value).into_iter();
                found.extend(below.map(|(path, number)| (format!("{name}/{path}"), number)));
            }
            _ => {}
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_reader_finds_the_figures_of_metrics_jsonl_in_the_event_file() {
    let scratch = tempfile::tempdir().unwrap();
    let store = whole_run::made(scratch.path()).await;
    let exports = store.join("exports/tiny");
    let lines = std::fs::read_to_string(exports.join("metrics.jsonl")).unwrap();
    let files: Vec<PathBuf> = std::fs::read_dir(exports.join("tensorboard"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    let [file] = files.as_slice() else {
        panic!("TensorBoard merges the files of a folder: {files:?}");
    };
    let name = file.file_name().unwrap().to_str().unwrap();
    assert!(name.contains("tfevents"), "TensorBoard skips {name}");
    let bytes = std::fs::read(file).unwrap();

    let mut read = events(&bytes).unwrap();
    let head = read.remove(0);
    assert_eq!(head.version.as_deref(), Some("brain.Event:2"));
    assert!(head.values.is_empty());
    let mut found = BTreeMap::new();
    for event in read {
        assert_eq!(event.version, None);
        for (tag, number) in event.values {
            let place = (event.step, tag);
            let known = found.insert(place.clone(), (event.wall_time_s, number));
            assert_eq!(known, None, "{place:?} is there twice");
        }
    }
    let expected = expected(&lines);
    for tag in ["sft_steps/loss", "evaluate/easy/success", "update/lr"] {
        assert!(expected.keys().any(|(_, known)| known == tag), "{tag}");
    }
    // What an iteration comes to has verl's names.
    let is_total = |(_, tag): &Place| {
        let groups = [
            "actor",
            "critic",
            "perf",
            "timing_s",
            "val",
            "prompt_length",
            "response_length",
        ];
        groups.contains(&tag.split('/').next().unwrap())
    };
    let (totals, found): (BTreeMap<_, _>, BTreeMap<_, _>) =
        found.into_iter().partition(|(place, _)| is_total(place));
    assert_eq!(found, expected);
    for (total, own) in [
        ("actor/pg_loss", "update/pg_loss"),
        ("actor/grad_norm", "update/grad_norm"),
        ("critic/score/mean", "advantage/reward"),
        ("val/test_score/easy", "evaluate/easy/reward"),
    ] {
        let of = |all: &BTreeMap<Place, (f64, f32)>, wanted: &str| -> Vec<(i64, f32)> {
            let found = all.iter().filter(|((_, tag), _)| tag == wanted);
            found
                .map(|((step, _), (_, value))| (*step, *value))
                .collect()
        };
        assert!(!of(&totals, total).is_empty(), "{total}");
        assert_eq!(of(&totals, total), of(&found, own), "{total}");
    }

    // The reader detects any single damaged byte.
    for at in (0..bytes.len()).step_by(97) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        assert!(events(&damaged).is_err(), "byte {at} is not checked");
    }
}
