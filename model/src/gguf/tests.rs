//! Small GGUF files made here: what comes back of a model, what a file may scale and spell, and what is refused.

mod sketch;

pub(crate) use self::sketch::Sketch;
use super::blocks::Kind;
use super::{Imported, import};
use crate::dtype::Dtype;
use crate::tests::{SHAPES, Shape, fixtures, random_policy, requests, sequences};
use crate::{
    Architecture, ComputeOptions, Device, Policy, PolicyText, Rope, RopeScaling, Tokenizer, score,
};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A file in a folder of its own, imported beside itself.
pub(super) fn imported(
    sketch: &Sketch,
    dtype: Dtype,
) -> (TempDir, PathBuf, crate::Result<Imported>) {
    let scratch = TempDir::new().unwrap();
    let (file, to) = (scratch.path().join("m.gguf"), scratch.path().join("to"));
    std::fs::write(&file, sketch.bytes()).unwrap();
    let told = import(&file, &to, dtype, &mut |done, all| assert!(done <= all));
    (scratch, to, told)
}

/// The policy of a file that is imported.
fn policy(sketch: &Sketch) -> Policy {
    let (_scratch, to, told) = imported(sketch, Dtype::F32);
    told.unwrap();
    Policy::load(&to, &Device::cpu()).unwrap()
}

/// What is said of a file, of which nothing is left behind.
fn refused(sketch: &Sketch) -> String {
    let (scratch, _, told) = imported(sketch, Dtype::F32);
    let left = std::fs::read_dir(scratch.path()).unwrap().count();
    assert_eq!(left, 1, "only the file itself");
    let said = told.unwrap_err().to_string();
    assert!(said.contains("m.gguf") && !said.contains('\n'), "{said}");
    said
}

/// Without scaled frequencies, of which a file has factors alone.
fn shapes() -> impl Iterator<Item = Shape> {
    let known = |shape: &Shape| shape.architecture != Architecture::Mistral;
    let plain = |shape: Shape| Shape {
        rope: SHAPES[0].rope,
        ..shape
    };
    SHAPES.into_iter().filter(known).map(plain)
}

/// The numbers of every format are those of PyPI's gguf (tools/gguf_fixture.py).
#[test]
fn blocks_are_widened_to_the_bit() {
    let golden = std::fs::read_to_string(fixtures().join("gguf-blocks.txt")).unwrap();
    let kinds =
        [0, 1, 30, 2, 3, 6, 7, 8, 10, 11, 12, 13, 14].map(|number| Kind::of(number).unwrap());
    let unhex = |text: &str| -> Vec<u8> {
        let bytes = text.as_bytes().chunks(2);
        bytes
            .map(|two| u8::from_str_radix(str::from_utf8(two).unwrap(), 16).unwrap())
            .collect()
    };
    assert_eq!(golden.lines().count(), kinds.len());
    for (line, kind) in golden.lines().zip(kinds) {
        let [name, bytes, numbers] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
        assert_eq!(name, kind.name());
        let mut found = Vec::new();
        kind.widen(&unhex(bytes), &mut found);
        let found: Vec<u8> = found.into_iter().flat_map(f32::to_le_bytes).collect();
        assert_eq!(found, unhex(numbers), "{name}");
    }
}

#[test]
fn a_model_comes_back_with_every_bit_and_its_log_probs() {
    let mut families = Vec::new();
    for (seed, shape) in shapes().enumerate() {
        let before = random_policy(shape, seed as u64);
        let mut sketch = Sketch::of(&before);
        sketch.version = 2 + (seed % 2) as u32;
        let after = policy(&sketch);
        let config = |policy: &Policy| {
            let c = policy.config();
            (
                c.architecture,
                c.rope.clone(),
                c.head_dim,
                c.rms_norm_eps,
                c.max_position_embeddings,
            )
        };
        assert_eq!(config(&after), config(&before));
        assert!(after.weights() == before.weights(), "shape {seed}");
        assert_eq!(after.chat().template(), before.chat().template());
        let sequences = sequences(before.config().vocab_size, &[40, 7], 3);
        let scored = |policy: &Policy| {
            let scores = score(
                policy,
                &requests(&sequences),
                1.0,
                &ComputeOptions::default(),
            );
            scores
                .unwrap()
                .into_iter()
                .map(|s| s.log_probs)
                .collect::<Vec<_>>()
        };
        assert_eq!(scored(&after), scored(&before));
        families.push(shape.architecture);
    }
    families.dedup();
    assert!(families.len() >= 3, "{families:?}");
}

/// What was rounded is told, and the folder holds what the file stands for; bf16 only where it is asked for.
#[test]
fn formats_are_told_and_widened() {
    let before = random_policy(shapes().next().unwrap(), 1);
    let mut sketch = Sketch::of(&before);
    let (dims, _, bytes) = sketch.tensors["blk.0.ffn_up.weight"].clone();
    let rounded = bytes.chunks(128).flat_map(|block| {
        let quarters = block
            .chunks(4)
            .map(|x| (f32::from_le_bytes(x.try_into().unwrap()) * 64.0) as i8 as u8);
        half::f16::from_f32(1.0 / 64.0)
            .to_le_bytes()
            .into_iter()
            .chain(quarters)
    });
    let rounded: Vec<u8> = rounded.collect();
    sketch
        .tensors
        .insert("blk.0.ffn_up.weight".into(), (dims, 8, rounded));
    let (_scratch, to, told) = imported(&sketch, Dtype::F32);
    let told = told.unwrap();
    let names: Vec<_> = told
        .formats
        .iter()
        .map(|f| (f.format, f.quantised, f.tensors))
        .collect();
    assert_eq!(
        names,
        [
            ("F32", false, sketch.tensors.len() as u64 - 1),
            ("Q8_0", true, 1)
        ]
    );
    assert_eq!(told.bytes, 4 * told.parameters());
    assert!(told.bits < 32.0 && told.chat_template && told.pre_tokenizer == "qwen2");
    let exact = Policy::load(&to, &Device::cpu()).unwrap();
    let name = "model.layers.0.mlp.up_proj.weight";
    let numbers = exact.weights().get(name).unwrap().numbers();
    assert!(numbers.iter().all(|x| (x * 64.0).fract() == 0.0));
    let (_scratch, to, told) = imported(&sketch, Dtype::Bf16);
    assert_eq!(
        told.unwrap().bytes,
        2 * exact.weights().parameter_count() as u64
    );
    let short = Policy::load(&to, &Device::cpu()).unwrap();
    assert_eq!(short.weights().get(name).unwrap().numbers(), numbers);
    assert_eq!(short.config().raw("torch_dtype").unwrap(), "bfloat16");
}

#[test]
fn scaled_frequencies_are_those_of_the_file_or_refused() {
    let plain = Sketch::of(&random_policy(shapes().next().unwrap(), 1));
    let family = plain.family().to_owned();
    let key = |name: &str| format!("{family}.rope.scaling.{name}");
    let with = |edit: &dyn Fn(&mut Sketch)| {
        let mut sketch = plain.clone();
        edit(&mut sketch);
        sketch
    };
    let scaling = |sketch: &Sketch| policy(sketch).config().rope.scaling.clone();
    let linear = with(&|s| {
        s.text(&key("type"), "linear");
        s.real(&key("factor"), 4.0);
    });
    let bare = with(&|s| s.real(&key("factor"), 4.0));
    for sketch in [linear, bare] {
        assert_eq!(scaling(&sketch), RopeScaling::Linear { factor: 4.0 });
    }
    let yarn = with(&|s| {
        s.text(&key("type"), "yarn");
        s.real(&key("factor"), 4.0);
        s.number(&key("original_context_length"), 128);
    });
    match scaling(&yarn) {
        RopeScaling::Yarn {
            factor: 4.0,
            original_max_position_embeddings: 128.0,
            beta_fast: 32.0,
            ..
        } => {}
        other => panic!("{other:?}"),
    }
    let factors = |numbers: &[f32]| {
        let numbers = numbers.to_vec();
        with(&move |s| {
            s.real(
                &format!("{}.rope.freq_base", s.family().to_owned()),
                500_000.0,
            );
            s.tensor("rope_freqs.weight", &[numbers.len()], &numbers);
        })
    };
    assert_eq!(scaling(&factors(&[1.0; 8])), RopeScaling::Default);
    // Llama 3's as its converter writes them.
    let theta = 500_000.0;
    let llama3 = RopeScaling::Llama3 {
        factor: 32.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 8192.0,
    };
    let frequencies = |scaling: RopeScaling| Rope { theta, scaling }.frequencies(16);
    let pairs = frequencies(RopeScaling::Default)
        .into_iter()
        .zip(frequencies(llama3.clone()));
    let llama3s: Vec<f32> = pairs
        .map(|(plain, scaled)| (plain / scaled) as f32)
        .collect();
    assert_eq!(scaling(&factors(&llama3s)), llama3);
    let longrope = with(&|s| s.text(&key("type"), "longrope"));
    let attention = with(&|s| {
        s.text(&key("type"), "yarn");
        s.real(&key("attn_factor"), 2.0);
    });
    for (sketch, word) in [
        (longrope, "longrope"),
        (attention, "attn_factor"),
        (
            factors(&[1.0, 1.0, 1.0, 2.0, 3.0, 4.0, 8.0, 8.0]),
            "rope_freqs.weight",
        ),
    ] {
        let said = refused(&sketch);
        assert!(said.contains(word), "{word}: {said}");
    }
}

#[test]
fn what_ends_begins_and_is_special_is_said() {
    let mut sketch = Sketch::of(&random_policy(shapes().next().unwrap(), 1));
    sketch.number("tokenizer.ggml.eot_token_id", 0);
    sketch.number("tokenizer.ggml.bos_token_id", 1);
    sketch.switch("tokenizer.ggml.add_bos_token", true);
    sketch.kinds[5] = 4;
    let (_scratch, to, told) = imported(&sketch, Dtype::F32);
    told.unwrap();
    let text = PolicyText::load(&to).unwrap();
    assert_eq!(text.eos_ids(), [0, 2]);
    let read = |name: &str| -> Value {
        serde_json::from_slice(&std::fs::read(to.join(name)).unwrap()).unwrap()
    };
    let config = read("tokenizer_config.json");
    assert_eq!(
        (&config["bos_token"], &config["add_bos_token"]),
        (&"<|im_start|>".into(), &true.into())
    );
    let whole = tokenizers::Tokenizer::from_file(to.join("tokenizer.json")).unwrap();
    let ids = whole
        .encode("ab<|im_end|>", true)
        .unwrap()
        .get_ids()
        .to_vec();
    assert_eq!((ids[0], *ids.last().unwrap()), (1, 2));
    let special = text.tokenizer().special_tokens();
    assert_eq!(special.len(), 3);
    let added = read("tokenizer.json")["added_tokens"]
        .as_array()
        .unwrap()
        .len();
    assert_eq!(added, 4, "three special ones and a word");
    // An end that is not `eos` stays one where it is alone, too.
    let mut alone = sketch.clone();
    alone.values.remove("tokenizer.ggml.eos_token_id");
    let (_scratch, to, told) = imported(&alone, Dtype::F32);
    told.unwrap();
    let said = std::fs::read_to_string(to.join("generation_config.json")).unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(&said).unwrap()["eos_token_id"],
        json!([0])
    );
    // The first token of a model that says nothing is that of its pre-tokenizer.
    let begins = |pre: &str| {
        let mut sketch = sketch.clone();
        sketch.values.remove("tokenizer.ggml.add_bos_token");
        sketch.text("tokenizer.ggml.pre", pre);
        let (_scratch, to, told) = imported(&sketch, Dtype::F32);
        told.unwrap();
        let file = std::fs::read(to.join("tokenizer_config.json")).unwrap();
        serde_json::from_slice::<Value>(&file).unwrap()["add_bos_token"].clone()
    };
    assert_eq!([begins("llama-bpe"), begins("smollm")], [true, false]);
}

/// Where digits, blanks and letters are parted is what the name says.
#[test]
fn texts_are_split_by_the_name_of_the_pre_tokenizer() {
    let mut sketch = Sketch::of(&random_policy(shapes().next().unwrap(), 1));
    let (one, two) = (sketch.id("1"), sketch.id("2"));
    // An unused id becomes the pair of them.
    let pair = sketch.tokens.len() - 1;
    sketch.tokens[pair] = "12".to_owned();
    sketch.kinds[pair] = 1;
    sketch.merges.push("1 2".to_owned());
    for (pre, expected) in [
        ("gpt-2", vec![pair as u32]),
        ("llama-bpe", vec![pair as u32]),
        ("tekken", vec![one, two]),
        ("smollm", vec![one, two]),
        ("qwen2", vec![one, two]),
        ("deepseek-coder", vec![one, two]),
        ("default", vec![pair as u32]),
    ] {
        sketch.text("tokenizer.ggml.pre", pre);
        let (_scratch, to, told) = imported(&sketch, Dtype::F32);
        assert_eq!(told.unwrap().pre_tokenizer, pre);
        let tokenizer = Tokenizer::load(&to).unwrap();
        assert_eq!(tokenizer.encode("12").unwrap(), expected, "{pre}");
    }
    sketch.text("tokenizer.ggml.pre", "nobody-knows");
    let said = refused(&sketch);
    assert!(
        said.contains("nobody-knows") && said.contains("smollm"),
        "{said}"
    );
    sketch.values.remove("tokenizer.ggml.pre");
    assert!(refused(&sketch).contains("tokenizer.ggml.pre"));
}

/// The pair whose union scores highest is merged first; what has no token is bytes.
#[test]
fn sentencepiece_merges_by_its_scores() {
    let mut sketch = Sketch::of(&random_policy(shapes().next().unwrap(), 1));
    let size = sketch.tokens.len();
    let mut words: Vec<(String, i32, f32)> = vec![
        ("<unk>".into(), 2, 0.0),
        ("<s>".into(), 3, 0.0),
        ("</s>".into(), 3, 0.0),
    ];
    words.extend((0..=255).map(|byte| (format!("<0x{byte:02X}>"), 6, 0.0)));
    for (word, score) in [
        ("▁", -9.0),
        ("a", -9.0),
        ("b", -9.0),
        ("c", -9.0),
        ("ab", -3.0),
        ("bc", -1.0),
        ("▁a", -2.0),
    ] {
        words.push((word.into(), 1, score));
    }
    words.resize(size, ("".into(), 5, 0.0));
    sketch.tokens = words.iter().map(|word| word.0.clone()).collect();
    sketch.kinds = words.iter().map(|word| word.1).collect();
    sketch.text("tokenizer.ggml.model", "llama");
    sketch.reals(
        "tokenizer.ggml.scores",
        &words.iter().map(|word| word.2).collect::<Vec<_>>(),
    );
    let ids = |sketch: &Sketch, text: &str| {
        let (_scratch, to, told) = imported(sketch, Dtype::F32);
        told.unwrap();
        let tokenizer = Tokenizer::load(&to).unwrap();
        let ids = tokenizer.encode(text).unwrap();
        assert_eq!(tokenizer.decode(&ids, false), text);
        ids.into_iter()
            .map(|id| words[id as usize].0.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(ids(&sketch, "abc"), ["▁a", "bc"]);
    assert_eq!(
        ids(&sketch, "ab c é"),
        ["▁a", "b", "▁", "c", "▁", "<0xC3>", "<0xA9>"]
    );
    sketch.switch("tokenizer.ggml.add_space_prefix", false);
    assert_eq!(ids(&sketch, "abc</s>"), ["a", "bc", "</s>"]);
    sketch.values.remove("tokenizer.ggml.scores");
    assert!(refused(&sketch).contains("tokenizer.ggml.scores"));
    sketch.text("tokenizer.ggml.model", "bert");
    assert!(refused(&sketch).contains("\"bert\""));
}

type Edit = fn(&mut Sketch);

#[test]
fn what_cannot_be_imported_is_named() {
    let plain = Sketch::of(&random_policy(shapes().next().unwrap(), 1));
    let cases: [(Edit, &[&str]); 21] = [
        (
            |s| s.real("qwen2.attention.layer_norm_rms_epsilon", f32::NAN),
            &["layer_norm_rms_epsilon is not what belongs there"],
        ),
        (
            |s| s.tokens[7] = "x".repeat(2000),
            &["a token of 2000 bytes"],
        ),
        (
            |s| s.tensor("rope_freqs.weight", &[5000], &[2.0; 5000]),
            &["rope_freqs.weight has 5000 numbers"],
        ),
        (
            |s| s.text("general.architecture", "gemma3"),
            &["\"gemma3\"", "llama, qwen2, qwen3"],
        ),
        (
            |s| {
                s.short("split.count", 3);
                s.short("split.no", 1);
            },
            &["part 2 of 3", "llama-gguf-split --merge"],
        ),
        (
            |s| s.kind("blk.0.ffn_up.weight", 16),
            &["blk.0.ffn_up.weight", "IQ2_XXS", "Q4_K"],
        ),
        (
            |s| s.kind("blk.0.ffn_up.weight", 99),
            &["blk.0.ffn_up.weight", "type 99"],
        ),
        (
            |s| s.tensor("cls.output.weight", &[2], &[0.0; 2]),
            &["cls.output.weight", "another kind"],
        ),
        (
            |s| s.again = Some("output_norm.weight".into()),
            &["output_norm.weight", "twice"],
        ),
        (
            |s| s.number("tokenizer.ggml.eos_token_id", 4000),
            &["eos_token_id is 4000"],
        ),
        (|s| s.add_tokens(1), &["an id without weights"]),
        (
            |s| s.number("qwen2.expert_count", 8),
            &["expert_count is 8"],
        ),
        (
            |s| s.real("qwen2.logit_scale", 2.0),
            &["qwen2.logit_scale is there"],
        ),
        (
            |s| s.number("qwen2.rope.dimension_count", 2),
            &["rope.dimension_count is 2"],
        ),
        (
            |s| s.remove("blk.1.attn_k.bias"),
            &["blk.1.attn_k.bias", "is missing"],
        ),
        (
            |s| s.tensor("blk.0.attn_norm.weight", &[3], &[1.0; 3]),
            &["blk.0.attn_norm.weight", "sizes [3]"],
        ),
        (
            |s| s.poison("blk.1.ffn_down.weight"),
            &["mlp.down_proj", "NaN"],
        ),
        (|s| s.tokens[7] = "!".into(), &["\"!\" twice"]),
        (|s| _ = s.kinds.pop(), &["types of tokens"]),
        (
            |s| s.merges.push("nothing here".into()),
            &["its tokenizer: not a tokenizer"],
        ),
        (|s| s.version = 1, &["version 1"]),
    ];
    for (at, (edit, words)) in cases.into_iter().enumerate() {
        let mut sketch = plain.clone();
        edit(&mut sketch);
        let said = refused(&sketch);
        for word in words {
            assert!(said.contains(word), "{at}: {word}: {said}");
        }
    }
}

/// Half a file, something else, and a place that is taken.
#[test]
fn files_that_are_cut_off_leave_nothing() {
    let sketch = Sketch::of(&random_policy(shapes().next().unwrap(), 1));
    let bytes = sketch.bytes();
    let scratch = TempDir::new().unwrap();
    let file = scratch.path().join("m.gguf");
    for (bytes, words) in [
        (&bytes[..bytes.len() - 1], "cut off"),
        (&bytes[..bytes.len() / 3], "copy the file again"),
        (&bytes[..90], "copy the file again"),
        (&b"GGU"[..], "is no GGUF file"),
        (&b"{\"model\": 1}"[..], "is no GGUF file"),
    ] {
        std::fs::write(&file, bytes).unwrap();
        let said = import(
            &file,
            &scratch.path().join("to"),
            Dtype::F32,
            &mut |_, _| (),
        )
        .unwrap_err()
        .to_string();
        assert!(said.contains(words), "{said}");
    }
    std::fs::write(&file, &bytes).unwrap();
    let full = Path::new("/dev/full/to");
    assert!(import(&file, full, Dtype::F32, &mut |_, _| ()).is_err());
    let taken = scratch.path().join("taken");
    std::fs::create_dir(&taken).unwrap();
    std::fs::write(taken.join("mine"), "mine").unwrap();
    assert!(import(&file, &taken, Dtype::F32, &mut |_, _| ()).is_err());
    assert_eq!(std::fs::read_dir(&taken).unwrap().count(), 1);
    assert_eq!(
        std::fs::read_dir(scratch.path()).unwrap().count(),
        2,
        "the file, and what was there"
    );
}
