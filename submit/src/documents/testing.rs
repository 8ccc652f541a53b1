//! `schema/v1.json`, made from the structs that `--json` prints. To write it anew after a change:
//! `AGENTGYM_SCHEMA=write cargo test --release --workspace --lib the_schema`.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// An object of another crate that is shown as it is.
pub(crate) type Object = Map<String, Value>;

/// A commit, inside other documents; its version is its own.
#[derive(JsonSchema)]
#[schemars(rename = "manifest")]
#[allow(dead_code, reason = "the form of agentgym_storage::Manifest")]
pub(crate) struct Manifest {
    version: u32,
    run: String,
    iteration: u32,
    stage: String,
    part: u32,
    attempt: u32,
    nonce: String,
    inputs: Vec<Object>,
    outputs: Vec<Output>,
    seed: u64,
    numeric_class: String,
    code_version: String,
    plan_revision: u32,
    work: Option<Object>,
}

#[derive(JsonSchema)]
#[allow(dead_code, reason = "the form of agentgym_storage::Artifact")]
struct Output {
    name: String,
    kind: String,
    key: String,
    size: u64,
    digest: String,
    chunk_digests: Vec<String>,
    #[schemars(skip_serializing_if = "Option::is_none")]
    delta: Option<Object>,
}

#[derive(JsonSchema)]
#[allow(dead_code, reason = "the form of agentgym_record::credit::EpisodeLine")]
pub(crate) struct EpisodeLine {
    task: String,
    group: u32,
    sample: u32,
    outcome: String,
    score: f64,
    slot: Option<usize>,
    advantage: Option<f64>,
    left_out: Option<String>,
}

#[derive(JsonSchema)]
#[allow(
    dead_code,
    reason = "the form of agentgym_record::credit::EpisodeCredit"
)]
pub(crate) struct EpisodeCredit {
    task: String,
    group: u32,
    sample: u32,
    slot: Option<usize>,
    left_out: Option<String>,
    score: f64,
    turn_rewards: Option<Vec<f64>>,
    reward_terms: Vec<Object>,
    members: Vec<Object>,
    rewards: Vec<f64>,
    loss_mask: Vec<bool>,
    values: Option<Vec<f64>>,
    kl: Option<Object>,
    explanation: Option<Object>,
    scrambled: bool,
    importance: Option<Object>,
    advantage: Option<f64>,
    advantages: Vec<Vec<f64>>,
    minibatch: Option<Object>,
}

impl<T: JsonSchema> JsonSchema for super::InOrder<T> {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("InOrder_{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> schemars::Schema {
        BTreeMap::<String, T>::json_schema(generator)
    }
}

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../schema/v1.json");

/// The definition of a document, with its version in front.
fn definition<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    let mut schema = Value::from(T::json_schema(generator));
    let version = json!({"const": super::JSON_VERSION});
    let fields = schema.as_object_mut().unwrap();
    let properties = fields.entry("properties").or_insert_with(|| json!({}));
    properties
        .as_object_mut()
        .unwrap()
        .insert("version".to_owned(), version);
    let required = fields.entry("required").or_insert_with(|| json!([]));
    required.as_array_mut().unwrap().insert(0, json!("version"));
    schema
}

/// Every document by its name.
fn all(generator: &mut SchemaGenerator) -> BTreeMap<&'static str, Value> {
    use crate::{
        api, check_model, control, credit, error, import, inspect, keys_view, metrics, plan,
        questions, serve, status, verify, why, workers,
    };
    let mut out = BTreeMap::new();
    macro_rules! documents {
        ($($name:literal: $document:ty,)*) => {
            $(out.insert($name, definition::<$document>(generator));)*
        };
    }
    documents! {
        "check_model": check_model::document::ModelDocument,
        "compare": api::tasks::Comparison,
        "compare_several": questions::PairsDocument,
        "control": control::ControlDocument,
        "credit": credit::CreditDocument,
        "credit_pull": questions::PullDocument,
        "digest": crate::DigestDocument,
        "episodes": api::episodes::EpisodeList,
        "error": error::ErrorDocument,
        "export": crate::ExportDocument<'static>,
        "export_trajectories": crate::TrajectoriesDocument<'static>,
        "import": import::ImportDocument<'static>,
        "inspect": inspect::RunDocument,
        "inspect_iteration": inspect::IterationDocument,
        "inspect_part": inspect::PartDocument,
        "inspect_stage": inspect::StageDocument,
        "keys": keys_view::KeysDocument,
        "ledger": api::fleet::Ledger,
        "plan": plan::document::PlanDocument,
        "report": metrics::summary::ReportDocument,
        "serve": serve::ServeDocument,
        "status": status::StatusDocument,
        "status_all": status::all::AllDocument,
        "verify": verify::VerifyDocument,
        "view": api::ViewDocument,
        "view_bundle": api::BundleDocument,
        "why": why::WhyDocument,
        "workers": workers::WorkersDocument,
    }
    out
}

#[test]
fn the_schema_is_what_the_structs_say() {
    let mut generator = SchemaSettings::draft2020_12()
        .for_serialize()
        .into_generator();
    let mut defs: BTreeMap<String, Value> = BTreeMap::new();
    for (name, schema) in all(&mut generator) {
        defs.insert(name.to_owned(), schema);
    }
    let inner = generator.take_definitions(true).into_iter();
    defs.extend(
        inner
            .filter(|(name, _)| !defs.contains_key(name))
            .collect::<Vec<_>>(),
    );
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What --json prints, version 1",
        "description": "One definition for each document; those that begin with a capital are parts of documents. Fields may be added under this version; one that moves, goes or changes its meaning makes a new version, and CHANGELOG names it. Records inside inspect are described in docs/cli.md.",
        "$defs": defs,
    });
    let written = format!("{schema:#}\n");
    if std::env::var_os("AGENTGYM_SCHEMA").is_some() {
        std::fs::write(FILE, &written).unwrap();
    }
    let kept = std::fs::read_to_string(FILE).unwrap();
    assert!(
        kept == written,
        "schema/v1.json is not what the structs say; write it anew with AGENTGYM_SCHEMA=write"
    );
}
