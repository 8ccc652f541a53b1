//! What templates find in the environment of `transformers`, beyond Jinja.

use super::{chat, user};
use crate::folder::chat::{Chat, TemplateSettings};
use serde_json::{Value as Json, json};

fn rendered(template: &str) -> String {
    chat(template).render(&[user("it's <b> é")], false).unwrap()
}

fn settings(given: Json) -> TemplateSettings {
    serde_json::from_value(given).unwrap()
}

fn refused(template: &str, given: Json) -> String {
    let refused = chat(template).with_settings(&settings(given));
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("m/chat_template.jinja"), "{message}");
    message
}

#[test]
fn what_a_generation_tag_wraps_is_rendered_in_a_scope_of_its_own() {
    let template = "{%- for m in messages %}\n  {%- generation %}\n    {%- set x = 1 %}\n{{- m.content }} !\n  {% endgeneration %}\n{{ x }}\n{%- endfor %}";
    assert_eq!(rendered(template), "it's <b> é !\n");
}

#[test]
fn loops_are_left_and_gone_on_with() {
    let template = "{% for n in range(9) %}{% if n == 1 %}{% continue %}{% elif n == 4 %}{% break %}{% endif %}{{ n }}{% endfor %}";
    assert_eq!(rendered(template), "023");
}

#[test]
fn json_is_written_as_python_writes_it() {
    for (template, text) in [
        (
            "{{ {'b': 'é', 'a': [1, {}]} | tojson(sort_keys=true) }}",
            r#"{"a": [1, {}], "b": "é"}"#,
        ),
        (
            "{{ ['é😀'] | tojson(ensure_ascii=true) }}",
            r#"["\u00e9\ud83d\ude00"]"#,
        ),
        (
            "{{ {'a': [1, 2]} | tojson(separators=(',', ':')) }}",
            r#"{"a":[1,2]}"#,
        ),
        (
            "{{ {'a': [], 'b': [1, {}]} | tojson(indent=1) }}",
            "{\n \"a\": [],\n \"b\": [\n  1,\n  {}\n ]\n}",
        ),
        (
            "{{ [1, true, none, 1.0, \"<b> it's\"] | tojson(false, none, none) }}",
            r#"[1, true, null, 1.0, "<b> it's"]"#,
        ),
        ("{{ {'a': 1} | tojson(indent='\\t') }}", "{\n\t\"a\": 1\n}"),
    ] {
        assert_eq!(rendered(template), text, "{template}");
    }
}

#[test]
fn methods_of_python_are_known() {
    for (template, text) in [
        (
            "{{ 'abc'.removeprefix('a') }}{{ 'abc'.removesuffix('a') }}",
            "bcabc",
        ),
        (
            "{{ 'a-b-c'.partition('-')[2] }}{{ 'a-b-c'.rpartition('-')[0] }}",
            "b-ca-b",
        ),
        (
            "{{ tools is iterable }}{{ 'x' is iterable }}{{ 'x' is sequence }}{{ {} is sequence }}{{ 1 is sequence }}",
            "FalseTrueTrueTrueFalse",
        ),
        (
            "{{ 'a b'.split()[-1] }}{{ ' x '.strip() }}{{ {'k': 1}.get('k') }}",
            "bx1",
        ),
        (
            "{% set ns = namespace(n=1) %}{% for k, v in {'a': 2}.items() %}{% set ns.n = v %}{% endfor %}{{ ns.n }}",
            "2",
        ),
        (
            "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='role') | join }}",
            "user",
        ),
    ] {
        assert_eq!(rendered(template), text, "{template}");
    }
}

const DATED: &str = "{{ strftime_now('%d %B %Y, %A') if strftime_now is defined else 'never' }}";
const NAMED: &str = "{% if not date_string is defined %}{% set date_string = 'never' %}{% endif %}{{ date_string }}";

#[test]
fn the_date_is_a_constant_or_the_one_that_is_given() {
    assert_eq!(rendered(DATED), "26 July 2024, Friday");
    assert_eq!(rendered(NAMED), "26 Jul 2024");
    let given = settings(json!({"date": "2025-03-01"}));
    for (template, text) in [(DATED, "01 March 2025, Saturday"), (NAMED, "01 Mar 2025")] {
        let chat = chat(template).with_settings(&given).unwrap();
        assert_eq!(chat.render(&[user("x")], false).unwrap(), text);
        assert_eq!(
            chat.told().unwrap(),
            "asks for the date and is told 2025-03-01"
        );
    }
    assert_eq!(chat("{{ messages }}").told(), None);
    for date in ["2025-3-1", "2025-02-30", "today", ""] {
        let message = refused(DATED, json!({ "date": date }));
        assert!(
            message.contains("template_date") && message.contains("2024-07-26"),
            "{message}"
        );
    }
    let message = refused("{{ messages[0].content }}", json!({"date": "2025-03-01"}));
    assert!(message.contains("asks for no date"), "{message}");
    let message = chat("{{ strftime_now('%Q') }}")
        .render(&[user("x")], false)
        .unwrap_err();
    assert!(message.to_string().contains("%Q"), "{message}");
}

#[test]
fn variables_reach_every_rendering_and_a_folder_keeps_them() {
    let template = "{{ messages[-1].content }}{% if think is defined and think is false %} calm{% endif %}<|im_end|>{{ words.of[0] }}";
    let given = settings(json!({"variables": {"think": false, "words": {"of": ["x"]}}}));
    let calm = chat(template).with_settings(&given).unwrap();
    assert_eq!(
        calm.render(&[user("a")], true).unwrap(),
        "a calm<|im_end|>x"
    );
    assert_eq!(
        calm.told().unwrap(),
        "think is false, words is {\"of\":[\"x\"]}"
    );
    let folder = tempfile::tempdir().unwrap();
    calm.save(folder.path()).unwrap();
    let loaded = Chat::load(folder.path()).unwrap().unwrap();
    assert_eq!(
        loaded.render(&[user("a")], true).unwrap(),
        "a calm<|im_end|>x"
    );
    // What a run gives stands above what the folder has, name by name.
    let above = loaded
        .with_settings(&settings(json!({"variables": {"think": true}})))
        .unwrap();
    assert_eq!(above.render(&[user("a")], true).unwrap(), "a<|im_end|>x");
    // Nothing is written for a template that is given nothing.
    let plain = tempfile::tempdir().unwrap();
    chat(template).save(plain.path()).unwrap();
    assert_eq!(std::fs::read_dir(plain.path()).unwrap().count(), 1);
}

#[test]
fn a_variable_without_use_is_refused_by_name() {
    for (given, words) in [
        (
            json!({"thinks": 1}),
            ["template_variables.thinks", "it reads eos_token, think"],
        ),
        (
            json!({"messages": []}),
            ["template_variables.messages", "itself"],
        ),
        (
            json!({"date_string": "x"}),
            ["template_variables.date_string", "template_date"],
        ),
        (json!({"think": "x".repeat(70_000)}), ["70", "65536"]),
    ] {
        let template = "{{ messages[0].content if think }}{{ eos_token }}{{ date_string }}";
        let message = refused(template, json!({ "variables": given }));
        for word in words {
            assert!(message.contains(word), "{word}: {message}");
        }
    }
    let file = serde_json::from_value::<TemplateSettings>(json!({"day": "2025-03-01"}));
    assert!(file.unwrap_err().to_string().contains("day"));
}

#[test]
fn what_is_unknown_or_too_large_is_named() {
    let new = |template: String| {
        let path = "m/chat_template.jinja".into();
        Chat::new(template, Default::default(), vec![], path)
            .unwrap_err()
            .to_string()
    };
    let message = new("a\nb\n{% generated %}".to_owned());
    assert!(
        message.contains("generated") && message.contains("chat:3"),
        "{message}"
    );
    let message = new("x".repeat(10 << 20));
    assert!(
        message.contains("10485760 bytes") && message.contains("1048576"),
        "{message}"
    );
    for (template, word) in [
        ("\n\n{{ today() }}", "today"),
        ("\n\n{{ 'x' | shout }}", "shout"),
        (
            "\n\n{{ [1, 2] | tojson(indent=' ' * 100) }}",
            "at most 64 bytes",
        ),
    ] {
        let message = match chat_or(template) {
            Ok(chat) => chat.render(&[user("x")], false).unwrap_err().to_string(),
            Err(message) => message,
        };
        assert!(
            message.contains(word) && message.contains("chat:3"),
            "{message}"
        );
    }
}

fn chat_or(template: &str) -> Result<Chat, String> {
    let path = "m/chat_template.jinja".into();
    Chat::new(template.to_owned(), Default::default(), vec![], path).map_err(|e| e.to_string())
}
