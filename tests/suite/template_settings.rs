//! What a run gives its chat template: the date, never today's, and variables by name. Both are of the
//! run's identity, reach every rendering and stand in what is exported.

use agentgym_tests::program::{finish, program, workspace};
use serde_json::Value;
use std::path::Path;
use tempfile::TempDir;

/// Says the date and, unless it is told not to, a word before every reply.
const TEMPLATE: &str = "{%- if messages[0].role == 'user' %}{{- '<|im_start|>system\\n' + strftime_now('%d %b %Y') + '<|im_end|>\\n' }}{%- endif %}\
{%- for message in messages %}\
{%- if message.role == 'assistant' %}{%- generation %}{{- '<|im_start|>assistant\\n' + message.content + '<|im_end|>\\n' }}{%- endgeneration %}\
{%- else %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{%- endif %}\
{%- endfor %}\
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}";

const RUN: &str = "
actor_rollout_ref:
  rollout: {n: 2, max_tokens: 8, max_model_len: 1024}
  agentgym: {env_addr: 'builtin:worlds?depths=1-1&lines=4-5'}
data:
  train_batch_size: 2
  max_prompt_length: 512
  max_response_length: 512
  tasks: [{env: textcraft, ids: 0..100}]
algorithm: {rounds_ctrl: {rounds: 2}}
trainer: {total_training_steps: 1}
";

struct Scene(TempDir);

impl Scene {
    fn new(template: &str) -> Self {
        let scene = Self(TempDir::new().unwrap());
        let model = scene.at("model");
        std::fs::create_dir(&model).unwrap();
        for entry in std::fs::read_dir(workspace().join("models/base")).unwrap() {
            let path = entry.unwrap().path();
            std::fs::copy(&path, Path::new(&model).join(path.file_name().unwrap())).unwrap();
        }
        std::fs::write(Path::new(&model).join("chat_template.jinja"), template).unwrap();
        let config = format!("{RUN}run: {{seed: 3}}\n");
        std::fs::write(scene.at("run.yaml"), config).unwrap();
        scene
    }

    fn at(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// What a command prints on each stream, and its code.
    fn typed(&self, words: &[&str]) -> (String, String, Option<i32>) {
        let mut command = program("agentgym-submit");
        command.args(words).arg("--store").arg(self.at("store"));
        let output = finish(command);
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (
            text(output.stdout),
            text(output.stderr),
            output.status.code(),
        )
    }

    /// `words` with the config and the model.
    fn with(&self, words: &[&str], keys: &[&str]) -> (String, String, Option<i32>) {
        let (config, model) = (self.at("run.yaml"), self.at("model"));
        let model = format!("actor_rollout_ref.model.path={model}");
        let all = [words, &[&config, &model], keys].concat();
        self.typed(&all)
    }

    fn plan(&self, keys: &[&str]) -> Value {
        let (out, err, code) = self.with(&["--json", "plan"], keys);
        assert_eq!(code, Some(0), "{err}");
        serde_json::from_str(&out).unwrap()
    }
}

const DATE: &str = "actor_rollout_ref.model.template_date=2025-03-01";
const CALM: &str = "actor_rollout_ref.model.template_variables.enable_thinking=false";

#[test]
fn date_and_variables_are_of_the_plan_and_their_defaults_change_no_run() {
    let scene = Scene::new(TEMPLATE);
    let plain = scene.plan(&[]);
    let told = |plan: &Value| plan["template"].as_str().unwrap().to_owned();
    assert_eq!(told(&plain), "asks for the date and is told 2024-07-26");
    // As a program writes that has no such keys.
    for keys in [
        ["actor_rollout_ref.model.template_date=null"],
        ["actor_rollout_ref.model.template_variables={}"],
    ] {
        assert_eq!(scene.plan(&keys)["identity"], plain["identity"], "{keys:?}");
    }
    let other = scene.plan(&[DATE, CALM]);
    assert_eq!(
        told(&other),
        "asks for the date and is told 2025-03-01, enable_thinking is false"
    );
    for keys in [[DATE], [CALM]] {
        let one = scene.plan(&keys);
        assert_ne!(one["identity"], plain["identity"]);
        assert_ne!(one["identity"], other["identity"]);
    }
    let (screen, ..) = scene.with(&["plan"], &[DATE]);
    assert!(
        screen.contains("template    asks for the date and is told 2025-03-01"),
        "{screen}"
    );
    let (screen, _, code) = scene.typed(&["check-model", &scene.at("model")]);
    assert_eq!(code, Some(0));
    assert!(
        screen.contains("the chat template asks for the date and is told 2024-07-26"),
        "{screen}"
    );
}

#[test]
fn what_the_template_never_reads_is_refused_before_a_run_is_written() {
    let scene = Scene::new(TEMPLATE);
    for (key, words) in [
        (
            "template_variables={thinking: false}",
            ["template_variables.thinking", "it reads enable_thinking"],
        ),
        ("template_date=yesterday", ["template_date", "2024-07-26"]),
    ] {
        let key = format!("actor_rollout_ref.model.{key}");
        let (_, err, code) = scene.with(&[], &[&key]);
        assert_eq!(code, Some(2), "{err}");
        for word in words {
            assert!(err.contains(word), "{word}: {err}");
        }
    }
    let dateless = Scene::new(&TEMPLATE.replace("strftime_now('%d %b %Y')", "'now'"));
    let (_, err, code) = dateless.with(&[], &[DATE]);
    assert!(code == Some(2) && err.contains("asks for no date"), "{err}");
}

#[test]
fn a_run_plays_what_it_gives_and_its_export_keeps_it() {
    let scene = Scene::new(TEMPLATE);
    let (_, err, code) = scene.with(&["--quiet"], &[DATE, CALM, "run.id=told"]);
    assert_eq!(code, Some(0), "{err}");
    let exported = scene.at("exported");
    let (_, err, code) = scene.typed(&["export", "told", "--iteration", "1", "--to", &exported]);
    assert_eq!(code, Some(0), "{err}");
    let policy = Path::new(&exported).join("policy_after");
    let kept = std::fs::read_to_string(policy.join("chat_template_settings.json")).unwrap();
    assert!(
        kept.contains("2025-03-01") && kept.contains("enable_thinking"),
        "{kept}"
    );
    let text = agentgym_model::PolicyText::load(&policy).unwrap();
    let asked = [agentgym_model::Message::new(
        agentgym_model::Role::User,
        "Hi.",
    )];
    let prompt = text.chat().render(&asked, true).unwrap();
    assert!(
        prompt.contains("01 Mar 2025") && prompt.ends_with("</think>\n\n"),
        "{prompt}"
    );
    // Every prompt of the run has it.
    let episodes = std::fs::read_to_string(Path::new(&exported).join("episodes.jsonl")).unwrap();
    assert_eq!(episodes.lines().count(), 4);
    for line in episodes.lines() {
        let episode: Value = serde_json::from_str(line).unwrap();
        let sequence = &episode["sequences"][0];
        let ids: Vec<u32> = serde_json::from_value(sequence["token_ids"].clone()).unwrap();
        let played = text.tokenizer().decode(&ids, false);
        assert!(
            played.contains("01 Mar 2025") && played.contains("</think>\n\n"),
            "{played}"
        );
    }
}
