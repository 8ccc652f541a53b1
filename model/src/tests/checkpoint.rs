//! Policy folders as other tools write them (half precision, shards), which load, and damaged
//! ones (missing, misshapen or broken tensors), which are refused with the file and tensor named.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use crate::{Device, Policy, Result, TinyShape, tiny_text};

/// Type, shape and bytes of each tensor of a file.
pub(super) type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

pub(super) const NORM: &str = "model.norm.weight";
pub(super) const UP: &str = "model.layers.1.mlp.up_proj.weight";

pub(super) fn policy(tied: bool) -> Policy {
    let shape = TinyShape {
        hidden: 32,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        intermediate: 24,
        vocab: 380,
        tied,
        ..TinyShape::default()
    };
    let tokenizer = tiny_text::invented_tokenizer(tiny_text::Splitting::default(), 370).unwrap();
    shape.policy(11, tokenizer).unwrap()
}

pub(super) fn load(dir: &Path) -> Result<Policy> {
    Policy::load(dir, &Device::cpu())
}

pub(super) fn read(path: &Path) -> Tensors {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    file.iter()
        .map(|(name, view)| {
            let tensor = (view.dtype(), view.shape().to_vec(), view.data().to_vec());
            (name.to_owned(), tensor)
        })
        .collect()
}

pub(super) fn write(path: &Path, tensors: &Tensors) {
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// Saves a policy, changes its tensors, loads it again.
fn changed(tied: bool, change: impl FnOnce(&mut Tensors)) -> Result<Policy> {
    let dir = tempfile::tempdir().unwrap();
    policy(tied).save(dir.path()).unwrap();
    let path = dir.path().join("model.safetensors");
    let mut tensors = read(&path);
    change(&mut tensors);
    write(&path, &tensors);
    load(dir.path())
}

/// The weights as a file holds them.
pub(super) fn saved(policy: &Policy) -> Tensors {
    let dir = tempfile::tempdir().unwrap();
    policy.save(dir.path()).unwrap();
    read(&dir.path().join("model.safetensors"))
}

#[test]
fn files_have_hugging_faces_names_and_shapes() {
    for tied in [true, false] {
        let tensors = saved(&policy(tied));
        assert_eq!(tensors[UP].1, [24, 32]);
        assert_eq!(
            tensors["model.layers.0.self_attn.k_proj.weight"].1,
            [16, 32]
        );
        assert_eq!(tensors["model.embed_tokens.weight"].1, [380, 32]);
        assert_eq!(tensors.contains_key("lm_head.weight"), !tied);
        assert_eq!(tensors.len(), 2 * 12 + 2 + usize::from(!tied));
    }
    let dir = tempfile::tempdir().unwrap();
    policy(false).save(dir.path()).unwrap();
    let bytes = std::fs::read(dir.path().join("model.safetensors")).unwrap();
    let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    let format = metadata.metadata().as_ref().unwrap().get("format");
    assert_eq!(format.map(String::as_str), Some("pt"));
}

#[test]
fn half_precision_is_widened() {
    let to_bf16 = |x: f32| ((x.to_bits() >> 16) as u16).to_le_bytes();
    // 1.5, -0.25 and 0 in IEEE half precision.
    let halves = [(0x3E00_u16, 1.5_f32), (0xB400, -0.25), (0, 0.0)];
    let policy = changed(true, |tensors| {
        let (dtype, _, bytes) = tensors.get_mut(UP).unwrap();
        let numbers = bytes.as_chunks::<4>().0;
        *bytes = (numbers.iter())
            .flat_map(|&b| to_bf16(f32::from_le_bytes(b)))
            .collect();
        *dtype = Dtype::BF16;
        let (dtype, shape, bytes) = tensors.get_mut(NORM).unwrap();
        *dtype = Dtype::F16;
        *bytes = (0..shape[0])
            .flat_map(|at| halves[at % 3].0.to_le_bytes())
            .collect();
    })
    .unwrap();
    let tensors = saved(&policy);
    let numbers = |tensors: &Tensors, name: &str| -> Vec<f32> {
        let bytes = tensors[name].2.as_chunks::<4>().0;
        bytes.iter().map(|&b| f32::from_le_bytes(b)).collect()
    };
    for (at, found) in numbers(&tensors, NORM).into_iter().enumerate() {
        assert_eq!(found, halves[at % 3].1);
    }
    let exact = numbers(&saved(&self::policy(true)), UP);
    for (found, exact) in numbers(&tensors, UP).into_iter().zip(exact) {
        assert_eq!(found.to_bits(), exact.to_bits() & 0xFFFF_0000);
    }
}

#[test]
fn shards_load_as_one_and_stay_inside_the_folder() {
    let dir = tempfile::tempdir().unwrap();
    let whole = policy(false);
    whole.save(dir.path()).unwrap();
    let path = dir.path().join("model.safetensors");
    let tensors = read(&path);
    std::fs::remove_file(path).unwrap();
    let mut shards = [Tensors::new(), Tensors::new()];
    let mut map = BTreeMap::new();
    for (at, (name, tensor)) in tensors.iter().enumerate() {
        shards[at % 2].insert(name.clone(), tensor.clone());
        map.insert(name, format!("part-{}.safetensors", at % 2));
    }
    for (at, shard) in shards.iter().enumerate() {
        write(&dir.path().join(format!("part-{at}.safetensors")), shard);
    }
    let index = dir.path().join("model.safetensors.index.json");
    std::fs::write(&index, serde_json::json!({"weight_map": map}).to_string()).unwrap();
    assert_eq!(saved(&load(dir.path()).unwrap()), tensors);

    let outside = serde_json::json!({"weight_map": {NORM: "../part-0.safetensors"}});
    std::fs::write(&index, outside.to_string()).unwrap();
    let message = load(dir.path()).unwrap_err().to_string();
    assert!(message.contains("outside the folder"), "{message}");
}

#[test]
fn a_tied_model_may_bring_its_head_along() {
    let policy = changed(true, |tensors| {
        let head = tensors["model.embed_tokens.weight"].clone();
        tensors.insert("lm_head.weight".to_owned(), head);
    });
    assert_eq!(saved(&policy.unwrap()), saved(&self::policy(true)));
}

#[test]
fn broken_tensors_are_refused_by_name() {
    type Change = fn(&mut Tensors);
    let cases: [(Change, &str, &str); 5] = [
        (|t| drop(t.remove(UP)), UP, "missing"),
        (
            |t| drop(t.insert("model.extra".to_owned(), t[NORM].clone())),
            "model.extra",
            "is not a parameter",
        ),
        (
            |t| t.get_mut(UP).expect("saved").1.reverse(),
            UP,
            "[32, 24]",
        ),
        (
            |t| {
                let bytes = &mut t.get_mut(NORM).expect("saved").2;
                bytes[20..24].copy_from_slice(&f32::NAN.to_le_bytes());
            },
            NORM,
            "number 5 is NaN",
        ),
        (
            |t| t.get_mut(NORM).expect("saved").0 = Dtype::I32,
            NORM,
            "I32",
        ),
    ];
    for (change, tensor, word) in cases {
        let message = changed(false, change).unwrap_err().to_string();
        for part in [tensor, word, "model.safetensors"] {
            assert!(message.contains(part), "{message}");
        }
    }
}

#[test]
fn a_damaged_file_is_no_panic() {
    let dir = tempfile::tempdir().unwrap();
    policy(true).save(dir.path()).unwrap();
    let path = dir.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    for length in [0, 7, 100, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..length]).unwrap();
        let message = load(dir.path()).unwrap_err().to_string();
        assert!(message.contains("model.safetensors"), "{message}");
    }
}
