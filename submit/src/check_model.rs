//! `check-model FOLDER`: what a model's folder holds, whether it is whole, what can be done with it
//! here, and the memory that takes. Every number of the weights is read, by the readers that a run
//! uses; a folder that they refuse ends the command with their message.

pub(crate) mod document;

use crate::cli::Global;
use crate::plan::memory::Memory;
use crate::plan::model_size::{self, ModelSize, told};
use crate::text::{bytes, count, many};
use crate::{Error, Result, text};
use agentgym_jobs::config::ResolvedConfig;
use agentgym_jobs::plan::Plan;
use agentgym_model::{
    Architecture, CANDLE_FAMILIES, Chat, Device, Dtype, ForeignModel, ForeignPolicy, ModelConfig,
    PolicyText, Tokenizer, Weights, WeightsOnDisk, parameter_shapes, said_twice,
};
use agentgym_worker::model_folder;
use document::{Candle, Least, MemoryDocument, ModelDocument, WeightFiles};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// A run with the default keys, for which memory is told; the model is put in its place.
const ASSUMED: &str = "
run: {id: check-model}
actor_rollout_ref:
  model: {path: tiny}
  rollout: {n: 8}
  agentgym: {task_name: textcraft, env_addr: builtin}
data: {tasks: [{env: textcraft, ids: 0..16}]}
trainer: {total_training_steps: 2}
";

/// Rank of the adapter for which memory is told.
const LORA_RANK: i64 = 16;

/// Whether a template has a place for tools: those of the toolbox, and those of others alike.
fn calls(chat: &Chat, tokenizer: &Tokenizer) -> Result<(), String> {
    let tools = agentgym_envs::spec("toolbox").map(|spec| spec.offered());
    let tools = tools.map_err(|e| e.to_string())?.unwrap_or_default();
    let calling = chat.with_tools(&tools).map_err(|e| e.to_string())?;
    calling
        .check(tokenizer)
        .map(drop)
        .map_err(|e| e.to_string())
}

/// What a folder holds.
struct Found {
    folder: PathBuf,
    /// What its `config.json` says.
    raw: Map<String, Value>,
    /// Why the model is not computed here.
    config: Result<ModelConfig, String>,
    weights: WeightsOnDisk,
    tokenizer_ids: Option<usize>,
    chat_template: bool,
    /// What a run with it should know of its text side.
    notes: Vec<String>,
    /// Why its template has no place for tools that are called.
    tools: Result<(), String>,
    /// Why it cannot be a policy, although its network is computed.
    missing: Vec<String>,
    /// What candle evaluates, of a model that is not computed here.
    candle: Option<ForeignModel>,
}

/// Prints what is found in the folder.
///
/// # Errors
/// A folder that is damaged, or holds a model that cannot be used here.
pub(crate) fn check_model(path: &str, global: &Global) -> Result<()> {
    let folder = model_folder(path).map_err(Error::Usage)?;
    let found = match ForeignPolicy::check(&folder, 0) {
        Ok((file, text)) if file.gguf => {
            by_candle(&folder, file).map(|file| Found::of_file(&folder, file, &text))
        }
        other => Found::read(&folder, other.map(|(model, _)| model)),
    };
    let found = found.map_err(|e| Error::Usage(told(&e)))?;
    let memory = found.memory();
    match global.json {
        true => text::emit_json(&found.document(memory.as_ref())),
        false => text::emit(&found.screen(memory.as_ref())),
    }
    let why = match (&found.config, &found.candle) {
        (Err(_), Some(_)) => None,
        (Err(why), None) => Some(why),
        (Ok(_), _) => found.missing.first(),
    };
    match why {
        None => Ok(()),
        Some(why) => Err(Error::Usage(why.clone())),
    }
}

/// Reads the weights of a model as candle would.
fn by_candle(folder: &Path, model: ForeignModel) -> Result<ForeignModel, agentgym_model::Error> {
    ForeignPolicy::load(folder, model.positions.min(16), &Device::cpu())?;
    Ok(model)
}

/// What is done with a model that candle computes.
const EVALUATE: &str =
    "evaluate, by candle: `agentgym-submit eval` with actor_rollout_ref.rollout.engine=candle";

/// What a `config.json` says; nothing where it is none.
fn said(path: &Path) -> Map<String, Value> {
    let text = match path.is_file() {
        true => std::fs::read(path).unwrap_or_default(),
        false => Vec::new(),
    };
    serde_json::from_slice(&text).unwrap_or_default()
}

impl Found {
    /// `foreign` is what candle's reader says of the folder.
    fn read(
        folder: &Path,
        foreign: Result<ForeignModel, agentgym_model::Error>,
    ) -> Result<Self, agentgym_model::Error> {
        let path = folder.join("config.json");
        let (config, raw) = match ModelConfig::load(folder) {
            Ok(config) => (Ok(config), said(&path)),
            // A model of another kind, and no damage.
            Err(e @ agentgym_model::Error::Unsupported { .. }) if !said(&path).is_empty() => {
                (Err(e.to_string()), said(&path))
            }
            Err(e) => return Err(e),
        };
        let mut found = Self {
            folder: folder.to_owned(),
            raw,
            config,
            weights: WeightsOnDisk::of(folder)?,
            tokenizer_ids: None,
            chat_template: false,
            notes: Vec::new(),
            tools: Err("none, without a chat template".to_owned()),
            missing: Vec::new(),
            candle: None,
        };
        found.read_text()?;
        let named = found.raw.get("model_type").and_then(Value::as_str);
        if found.config.is_err() && named.is_some_and(|name| CANDLE_FAMILIES.contains(&name)) {
            let read = foreign.and_then(|model| by_candle(folder, model));
            found.candle = read.map_err(|e| found.add(&e)).ok();
        }
        if let Ok(config) = &found.config {
            Weights::check(folder, config)?;
        }
        Ok(found)
    }

    /// What a GGUF file holds, with the text side beside it.
    fn of_file(folder: &Path, file: ForeignModel, text: &PolicyText) -> Self {
        let name = file.files.last().cloned().unwrap_or_default();
        let bytes = std::fs::metadata(folder.join(&name)).map_or(0, |found| found.len());
        Self {
            folder: folder.to_owned(),
            raw: Map::from_iter([("model_type".to_owned(), json!(file.family))]),
            config: Err(format!("{name}: GGUF files are evaluated, and not trained")),
            weights: WeightsOnDisk {
                files: vec![name],
                bytes,
                numbers: Default::default(),
            },
            tokenizer_ids: Some(text.tokenizer().vocab_size()),
            chat_template: true,
            notes: template_note(text.chat()).into_iter().collect(),
            tools: calls(text.chat(), text.tokenizer()),
            missing: Vec::new(),
            candle: Some(file),
        }
    }

    /// Adds why candle does not compute it either.
    fn add(&mut self, candle: &agentgym_model::Error) {
        if let Err(why) = &mut self.config {
            *why += &format!("; candle does not compute this one: {candle}");
        }
    }

    /// Reads the tokenizer and the chat template. Those of a model that is not computed here are not
    /// judged.
    fn read_text(&mut self) -> Result<(), agentgym_model::Error> {
        let (folder, judged) = (self.folder.as_path(), self.config.is_ok());
        let path = folder.join("tokenizer.json");
        let needs_text = judged && !self.is_critic();
        if !path.exists() {
            if needs_text {
                let path = path.display();
                self.missing
                    .push(format!("{path} is missing, and a policy needs it"));
            }
            return Ok(());
        }
        let read = Tokenizer::load(folder).and_then(|t| Ok((t, Chat::load(folder)?)));
        let (tokenizer, chat) = match read {
            Err(_) if !judged => return Ok(()),
            read => read?,
        };
        self.tokenizer_ids = Some(tokenizer.vocab_size());
        if let Some(chat) = &chat {
            self.chat_template = true;
            self.notes.extend(template_note(chat));
            self.tools = calls(chat, &tokenizer);
        }
        self.notes.extend(said_twice(folder, &tokenizer));
        if needs_text {
            let why = match chat {
                // Its message says what to do.
                None => PolicyText::load(folder).err(),
                Some(chat) => {
                    PolicyText::load(folder)?;
                    match chat.check(&tokenizer) {
                        Ok(said) => {
                            self.notes.extend(said);
                            None
                        }
                        Err(why) => Some(why),
                    }
                }
            };
            self.missing.extend(why.map(|e| e.to_string()));
        }
        Ok(())
    }

    fn is_critic(&self) -> bool {
        self.config.as_ref().is_ok_and(|config| config.value_head)
    }

    /// What the program can do with it, by name: generate, score, train, and train an adapter; play
    /// evaluations; and call tools.
    fn supported(&self) -> [(&'static str, bool); 6] {
        let whole = self.config.is_ok() && self.missing.is_empty();
        let policy = whole && !self.is_critic();
        [
            ("generate", policy),
            ("score", whole),
            ("train", whole),
            ("lora", policy),
            ("evaluate", policy || self.candle.is_some()),
            (
                "tools",
                (policy || self.candle.is_some()) && self.tools.is_ok(),
            ),
        ]
    }

    /// Parameters of the network; of one that is not computed here, the numbers in its files.
    fn parameters(&self) -> u64 {
        match &self.config {
            Ok(config) => {
                let shapes = parameter_shapes(config);
                let sizes = shapes.values().map(|shape| shape.iter().product::<usize>());
                sizes.sum::<usize>() as u64
            }
            Err(_) => match &self.candle {
                Some(model) => model.parameters,
                _ => self.weights.numbers.values().sum(),
            },
        }
    }

    /// Sizes by the names of `config.json`; as the family has it where the file leaves one out.
    fn sizes(&self) -> [(&'static str, Value); 7] {
        let names = [
            "num_hidden_layers",
            "hidden_size",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "vocab_size",
            "max_position_embeddings",
        ];
        let named = |name: &'static str| {
            let value = self.raw.get(name).filter(|value| value.is_u64());
            (name, value.cloned().unwrap_or(Value::Null))
        };
        let Ok(c) = &self.config else {
            return names.map(named);
        };
        let read = [
            c.num_hidden_layers,
            c.hidden_size,
            c.num_attention_heads,
            c.num_key_value_heads,
            c.head_dim,
            c.vocab_size,
            c.max_position_embeddings,
        ];
        std::array::from_fn(|at| (names[at], json!(read[at])))
    }

    /// Memory of a run with this policy; `None` where it is none.
    fn memory(&self) -> Option<MemoryOf> {
        let [(_, can_generate), ..] = self.supported();
        MemoryOf::new(&self.folder).ok().filter(|_| can_generate)
    }

    fn document(&self, memory: Option<&MemoryOf>) -> ModelDocument {
        let architectures = self.raw.get("architectures");
        let named = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
        let role = if self.is_critic() { "critic" } else { "policy" };
        let why_not = self.config.as_ref().err().into_iter().chain(&self.missing);
        let weights = &self.weights;
        let sizes = self.sizes().map(|(name, size)| (name, size.as_u64()));
        ModelDocument {
            folder: self.folder.display().to_string(),
            model_type: named(self.raw.get("model_type")),
            architecture: named(architectures.and_then(|all| all.get(0))),
            role: self.config.is_ok().then_some(role),
            sizes: sizes.into(),
            parameters: self.parameters(),
            weights: WeightFiles {
                files: weights.files.clone(),
                bytes: weights.bytes,
                numbers: weights.numbers.clone(),
            },
            tokenizer_ids: self.tokenizer_ids,
            chat_template: self.chat_template,
            notes: self.notes.clone(),
            supported: self.supported().into(),
            why_not: why_not.cloned().collect(),
            families: Architecture::ALL.map(Architecture::model_type).to_vec(),
            candle: self.candle.as_ref().map(|model| Candle {
                family: model.family.to_string(),
                gguf: model.gguf,
                parameters: model.parameters,
                positions: model.positions,
            }),
            memory: memory.map(MemoryOf::document),
        }
    }

    fn screen(&self, memory: Option<&MemoryOf>) -> String {
        let mut out = String::new();
        let mut line = |name: &str, text: String| out += &format!("{name:<12}{text}\n");
        line("folder", self.folder.display().to_string());
        let named = self.raw.get("model_type").and_then(Value::as_str);
        let role = match (&self.config, self.is_critic()) {
            (Err(_), _) if self.candle.is_some() => "computed by candle",
            (Err(_), _) => "not computed here",
            (_, true) => "a critic",
            (_, false) => "a policy",
        };
        line("family", format!("{}, {role}", named.unwrap_or("unknown")));
        let sizes = self.sizes().map(|(_, size)| match size.as_u64() {
            Some(size) => count(size),
            None => "?".to_owned(),
        });
        let [layers, hidden, heads, key_values, width, ids, positions] = sizes;
        line(
            "sizes",
            format!(
                "{layers} layers of {hidden}, {heads} heads of {width} ({key_values} of keys and values), \
                 {ids} ids, {positions} positions: {} parameters",
                count(self.parameters())
            ),
        );
        let dtypes: Vec<&str> = self.weights.numbers.keys().map(String::as_str).collect();
        let files = many(self.weights.files.len() as u64, "file");
        let on_disk = bytes(self.weights.bytes);
        line(
            "weights",
            format!("{on_disk} in {files}, {}", dtypes.join(", ")),
        );
        let tokenizer = match self.tokenizer_ids {
            Some(ids) => format!("tokenizer of {} ids", count(ids as u64)),
            None => "no tokenizer".to_owned(),
        };
        let template = if self.chat_template { "a" } else { "no" };
        line("text", format!("{tokenizer}, {template} chat template"));
        for note in &self.notes {
            line("note", note.clone());
        }
        if let (Err(why), true) = (&self.tools, self.chat_template) {
            line("no tools", why.clone());
        }
        let can = self.supported().into_iter().filter(|(_, can)| *can);
        let can: Vec<&str> = can.map(|(what, _)| what).collect();
        line(
            "can",
            match (&self.candle, can.is_empty()) {
                (Some(_), _) => EVALUATE.to_owned(),
                (_, false) => can.join(", "),
                (_, true) => format!(
                    "nothing here; families that train: {}; that candle evaluates: {}",
                    Architecture::ALL.map(Architecture::model_type).join(", "),
                    CANDLE_FAMILIES.join(", ")
                ),
            },
        );
        for text in memory.iter().flat_map(|memory| memory.lines()) {
            line("memory", text);
        }
        out
    }
}

/// Memory of a policy, as [`ASSUMED`] uses it: all of it trained, and an adapter alone.
struct MemoryOf {
    threads: u64,
    machine: u64,
    all: (ModelSize, Memory),
    adapter: (ModelSize, Memory),
}

impl MemoryOf {
    fn new(folder: &Path) -> Result<Self, String> {
        let config = ResolvedConfig::parse("check-model", Path::new("check-model"), ASSUMED, &[]);
        let plan = config.and_then(|config| Plan::new(config, Path::new("")));
        let plan = plan.map_err(|e| e.to_string())?;
        let threads = agentgym_worker::cores() as u64;
        let of = |lora_rank: i64| {
            let mut model = plan.config.actor_rollout_ref.model.clone();
            model.path = folder.to_string_lossy().into_owned();
            model.lora_rank = lora_rank;
            let size = model_size::of(&model)?;
            Ok::<_, String>((size, Memory::new(&plan, &size, threads, Dtype::F32)))
        };
        Ok(Self {
            threads,
            machine: agentgym_worker::machine_bytes(),
            all: of(0)?,
            adapter: of(LORA_RANK)?,
        })
    }

    /// Bytes that a device needs at least, without what sequences add: to generate, to train, to
    /// train an adapter.
    fn least(&self) -> [(&'static str, [u64; 3]); 3] {
        let (all, adapter) = (&self.all.0, &self.adapter.0);
        let narrow = |bytes: u128| u64::try_from(bytes).unwrap_or(u64::MAX);
        // Weights, a gradient and two moments; a tied head is transposed to generate.
        let cpu = |size: &ModelSize| narrow(4 * (size.parameters + 3 * size.trained));
        // What is trained is there in f32 too, beside the weights that products read.
        let gpu = |dtype: Dtype, size: &ModelSize| {
            narrow(dtype.bytes() as u128 * size.parameters + 4 * 4 * size.trained)
        };
        let on = |dtype: Dtype| {
            let weights = narrow(dtype.bytes() as u128 * all.parameters);
            [weights, gpu(dtype, all), gpu(dtype, adapter)]
        };
        let generating = narrow(4 * (all.parameters + all.head_copy));
        [
            ("cpu", [generating, cpu(all), cpu(adapter)]),
            ("cuda f32", on(Dtype::F32)),
            ("cuda bf16", on(Dtype::Bf16)),
        ]
    }

    fn document(&self) -> MemoryDocument {
        let least = self.least().into_iter();
        let least = least.map(|(device, [generate, train, lora])| Least {
            device,
            generate,
            train,
            lora,
        });
        MemoryDocument {
            threads: self.threads,
            machine_bytes: self.machine,
            stages: self.all.1.json().collect(),
            lora_stages: self.adapter.1.json().collect(),
            lora_rank: LORA_RANK,
            least_bytes: least.collect(),
        }
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            format!(
                "of a worker on the processor, {} threads, by the keys' defaults (`plan` has those of a config): {}",
                self.threads,
                self.all.1.text()
            ),
            format!(
                "the same with an adapter of rank {LORA_RANK}: {}",
                self.adapter.1.text()
            ),
        ];
        lines.extend(self.least().map(|(device, least)| {
            let [generate, train, lora] = least.map(bytes);
            format!(
                "{device}, at least, without what sequences add: {generate} to generate, {train} to train, \
                 {lora} to train an adapter"
            )
        }));
        lines.push(format!("this machine has {}", bytes(self.machine)));
        lines
    }
}

/// What the template of a folder is told.
fn template_note(chat: &Chat) -> Option<String> {
    chat.told().map(|told| format!("the chat template {told}"))
}
