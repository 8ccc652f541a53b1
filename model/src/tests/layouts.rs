//! Folders written again in bf16 and in shards are read back as the same policy, bit for bit but for
//! the rounding; and folders of which a part is missing or contradicts another are refused with the
//! file, or the tensor, named.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::Dtype as Stored;

use super::checkpoint::{NORM, Tensors, UP, load, policy, read, saved, write};
use crate::{Dtype, Layout, ModelConfig, SHARD_BYTES_MAX, Weights, WeightsOnDisk};

const INDEX: &str = "model.safetensors.index.json";

/// The nearest number whose lower half is zero, of two as near the one that is even: by the
/// definition, on bits, and not by the code under test.
fn rounded(x: f32) -> f32 {
    let (below, rest) = (x.to_bits() & 0xFFFF_0000, x.to_bits() & 0xFFFF);
    let odd = (below >> 16) & 1 == 1;
    match rest > 0x8000 || (rest == 0x8000 && odd) {
        true => f32::from_bits(below + 0x1_0000),
        false => f32::from_bits(below),
    }
}

/// Bits of finite numbers of every size: in turn any, one halfway between two numbers of bf16, a
/// subnormal one.
fn bits(seed: &mut u64, at: usize) -> u32 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    let any = (*seed >> 20) as u32;
    let some = match at % 3 {
        0 => any,
        1 => (any & 0xFFFF_0000) | 0x8000,
        _ => any & 0x807F_FFFF,
    };
    // Below half of the largest exponent, so that rounding stays finite.
    match (some >> 23) & 0xFF {
        0xFE | 0xFF => some & 0x807F_FFFF,
        _ => some,
    }
}

/// A folder whose weights have such numbers.
fn folder(tied: bool, seed: u64) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    policy(tied).save(dir.path()).unwrap();
    let path = dir.path().join("model.safetensors");
    let (mut tensors, mut seed) = (read(&path), seed);
    for (_, _, bytes) in tensors.values_mut() {
        for (at, place) in bytes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *place = bits(&mut seed, at).to_le_bytes();
        }
    }
    write(&path, &tensors);
    std::fs::write(dir.path().join("made.json"), "{}\n").unwrap();
    dir
}

fn numbers(tensors: &Tensors) -> BTreeMap<String, Vec<u32>> {
    let bits = |bytes: &[u8]| {
        let numbers = bytes.as_chunks::<4>().0.iter();
        numbers.map(|&b| u32::from_le_bytes(b)).collect()
    };
    let all = tensors.iter();
    all.map(|(name, (_, _, bytes))| (name.clone(), bits(bytes)))
        .collect()
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> = entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    names
}

#[test]
fn what_is_written_is_read_back_as_the_same_policy_but_for_the_rounding() {
    let mut several = 0;
    for (case, most) in [1, 3000, 12_345, 50_000, 100_000, SHARD_BYTES_MAX]
        .into_iter()
        .enumerate()
    {
        for tied in [true, false] {
            for dtype in Dtype::ALL {
                let from = folder(tied, 77 + case as u64);
                let before = numbers(&saved(&load(from.path()).unwrap()));
                let to = tempfile::tempdir().unwrap();
                let layout = Layout {
                    dtype,
                    shard_bytes_max: most,
                };
                layout.write(from.path(), to.path()).unwrap();
                let after = numbers(&saved(&load(to.path()).unwrap().in_f32()));
                let expected: BTreeMap<_, Vec<u32>> = before
                    .iter()
                    .map(|(name, bits)| {
                        let each = bits.iter().map(|&x| match dtype {
                            Dtype::F32 => x,
                            Dtype::Bf16 => rounded(f32::from_bits(x)).to_bits(),
                        });
                        (name.clone(), each.collect())
                    })
                    .collect();
                assert_eq!(after, expected, "{most} {tied} {dtype}");

                let found = WeightsOnDisk::of(to.path()).unwrap();
                let count: usize = before.values().map(Vec::len).sum();
                assert_eq!(found.bytes as usize, count * dtype.bytes());
                let format = if dtype == Dtype::F32 { "F32" } else { "BF16" };
                assert_eq!(
                    found.numbers,
                    [(format.to_owned(), count as u64)].into(),
                    "{most}"
                );
                let all = found.files.len();
                several += usize::from(all > 1);
                for (at, file) in found.files.iter().enumerate() {
                    if all > 1 {
                        let expected = format!("model-{:05}-of-{all:05}.safetensors", at + 1);
                        assert_eq!(*file, expected);
                    }
                    let tensors = read(&to.path().join(file));
                    let bytes: usize = tensors.values().map(|t| t.2.len()).sum();
                    assert!(bytes <= most || tensors.len() == 1, "{file}: {bytes}");
                }
                assert_eq!(to.path().join(INDEX).exists(), all > 1);
                // The other files are there, and the config names the format.
                let copied = names(from.path());
                for name in copied.iter().filter(|name| !name.starts_with("model")) {
                    assert!(to.path().join(name).exists(), "{name}");
                }
                let config = ModelConfig::load(to.path()).unwrap();
                assert_eq!(config.raw("torch_dtype").unwrap(), dtype.in_full());
                Weights::check(to.path(), &config).unwrap();
            }
        }
    }
    assert!(several >= 12, "{several}");
}

#[test]
fn shards_written_as_one_file_again_have_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    policy(false).save(dir.path()).unwrap();
    let [shards, whole] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let layout = |shard_bytes_max| Layout {
        dtype: Dtype::F32,
        shard_bytes_max,
    };
    layout(20_000).write(dir.path(), shards.path()).unwrap();
    assert!(WeightsOnDisk::of(shards.path()).unwrap().files.len() > 3);
    layout(usize::MAX)
        .write(shards.path(), whole.path())
        .unwrap();
    let bytes = |dir: &Path| std::fs::read(dir.join("model.safetensors")).unwrap();
    assert!(bytes(dir.path()) == bytes(whole.path()));
}

#[test]
fn a_number_beyond_bf16_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    policy(true).save(dir.path()).unwrap();
    let path = dir.path().join("model.safetensors");
    let mut tensors = read(&path);
    let bytes = &mut tensors.get_mut(NORM).unwrap().2;
    bytes[8..12].copy_from_slice(&f32::MAX.to_le_bytes());
    write(&path, &tensors);
    let to = tempfile::tempdir().unwrap();
    let layout = Layout {
        dtype: Dtype::Bf16,
        shard_bytes_max: SHARD_BYTES_MAX,
    };
    let message = layout.write(dir.path(), to.path()).unwrap_err().to_string();
    for word in [NORM, "number 2", "beyond bf16"] {
        assert!(message.contains(word), "{message}");
    }
}

/// Writes a policy in shards, damages the folder, and gives the message of every reader, which
/// must be the same.
fn damaged(damage: impl FnOnce(&Path)) -> String {
    let [whole, dir] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    policy(false).save(whole.path()).unwrap();
    let layout = Layout {
        dtype: Dtype::Bf16,
        shard_bytes_max: 20_000,
    };
    layout.write(whole.path(), dir.path()).unwrap();
    load(dir.path()).unwrap();
    let config = ModelConfig::load(dir.path()).unwrap();
    damage(dir.path());
    let message = load(dir.path()).unwrap_err().to_string();
    let check = Weights::check(dir.path(), &config).unwrap_err();
    assert_eq!(check.to_string(), message);
    let place = dir.path().display().to_string();
    assert!(message.contains(&place), "{message}");
    message.replace(&place, "")
}

fn edit_index(dir: &Path, edit: impl FnOnce(&mut serde_json::Map<String, serde_json::Value>)) {
    let path = dir.join(INDEX);
    let mut index: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    edit(index["weight_map"].as_object_mut().unwrap());
    std::fs::write(path, index.to_string()).unwrap();
}

/// The file that has a tensor.
fn file_of(dir: &Path, tensor: &str) -> String {
    let files = WeightsOnDisk::of(dir).unwrap().files;
    let holds = |file: &&String| read(&dir.join(file)).contains_key(tensor);
    files.iter().find(holds).unwrap().clone()
}

type Damage = fn(&Path);

#[test]
fn a_damaged_folder_is_refused_with_one_clear_message() {
    let cases: [(Damage, &[&str]); 12] = [
        (
            |dir| std::fs::remove_file(dir.join(file_of(dir, NORM))).unwrap(),
            &["/model-0", "is missing", INDEX],
        ),
        (
            |dir| {
                edit_index(dir, |map| {
                    drop(map.insert("model.ghost".into(), map[NORM].clone()))
                })
            },
            &[INDEX, "tensor model.ghost", "no file"],
        ),
        (
            |dir| {
                let other = file_of(dir, "model.embed_tokens.weight");
                edit_index(dir, |map| drop(map.insert(NORM.into(), other.into())));
            },
            &[INDEX, NORM, "is to be in", "is in model-0"],
        ),
        (
            |dir| {
                // The norm stands in the shard of the embedding too.
                let norm = read(&dir.join(file_of(dir, NORM))).remove(NORM).unwrap();
                let path = dir.join(file_of(dir, "model.embed_tokens.weight"));
                let mut tensors = read(&path);
                tensors.insert(NORM.into(), norm);
                write(&path, &tensors);
            },
            &[NORM, "is in model-0", "too"],
        ),
        (
            |dir| {
                let path = dir.join(file_of(dir, UP));
                let mut tensors = read(&path);
                tensors.get_mut(UP).unwrap().0 = Stored::I16;
                write(&path, &tensors);
            },
            &[UP, "has type I16", "bf16 are supported"],
        ),
        (
            |dir| {
                let path = dir.join(file_of(dir, UP));
                let mut bytes = std::fs::read(&path).unwrap();
                let at = bytes.windows(6).position(|w| w == b"\"BF16\"").unwrap();
                bytes[at..at + 6].copy_from_slice(b"\"BF61\"");
                std::fs::write(&path, bytes).unwrap();
            },
            &["has type \"BF61\"", "bf16 are supported"],
        ),
        (
            |dir| {
                let path = dir.join(file_of(dir, UP));
                let bytes = std::fs::read(&path).unwrap();
                std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
            },
            &["/model-0", "was cut off"],
        ),
        (
            |dir| std::fs::write(dir.join(INDEX), "{\"weight_map\": {}}").unwrap(),
            &[INDEX, "empty weight_map"],
        ),
        (
            |dir| edit_index(dir, |map| drop(map.insert(NORM.into(), 3.into()))),
            &[INDEX, "names 3", NORM],
        ),
        (
            |dir| {
                std::fs::remove_file(dir.join(INDEX)).unwrap();
            },
            &["/model.safetensors", "No such file"],
        ),
        (
            |dir| {
                let path = dir.join(file_of(dir, NORM));
                std::fs::write(
                    path,
                    "version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
                )
                .unwrap();
            },
            &["/model-0", "git lfs pull"],
        ),
        (
            |dir| {
                let path = dir.join(file_of(dir, NORM));
                std::fs::remove_file(&path).unwrap();
                std::fs::create_dir(&path).unwrap();
            },
            &["/model-0", "no regular file"],
        ),
    ];
    for (at, (damage, words)) in cases.into_iter().enumerate() {
        let message = damaged(damage);
        for word in words {
            assert!(message.contains(word), "{at}: {word}: {message}");
        }
        assert!(!message.contains('\n'), "{message}");
    }
}

#[test]
fn weights_in_other_formats_are_named() {
    for (file, format) in [
        ("model-q4.gguf", "GGUF"),
        ("pytorch_model-00001-of-00002.bin", "PyTorch's pickles"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(file), "GGUF").unwrap();
        let without_config = load(dir.path()).unwrap_err().to_string();
        policy(true).save(dir.path()).unwrap();
        std::fs::remove_file(dir.path().join("model.safetensors")).unwrap();
        let with_config = load(dir.path()).unwrap_err().to_string();
        for message in [without_config, with_config] {
            assert!(
                message.contains(file) && message.contains(format),
                "{message}"
            );
        }
    }
}
