//! The environment that templates are written for, that of `transformers`, over minijinja: its rules of
//! whitespace, loop controls, an inert `generation` tag, its functions and filters.

use super::python;
use super::settings::Date;
use minijinja::{Environment, UndefinedBehavior};
use std::collections::HashSet;

/// Largest number of instructions of one rendering. A message takes a few dozen, so there is
/// room for tens of thousands of messages.
pub(super) const INSTRUCTIONS_MAX: u64 = 10_000_000;

/// Largest template, in bytes. Published ones have some tens of thousands.
const TEMPLATE_MAX: usize = 1 << 20;

/// A template that is ready to render.
#[derive(Debug)]
pub(super) struct Compiled {
    environment: Environment<'static>,
    /// Names that it reads and does not define.
    pub(super) reads: HashSet<String>,
}

impl Compiled {
    /// Compiles a template whose date is `date`; why it cannot be.
    pub(super) fn new(template: &str, date: Date) -> Result<Self, String> {
        if template.len() > TEMPLATE_MAX {
            return Err(format!(
                "the chat template has {} bytes, at most {TEMPLATE_MAX} are read; give the folder the \
                 template of its model",
                template.len()
            ));
        }
        let mut environment = Environment::new();
        environment.set_fuel(Some(INSTRUCTIONS_MAX));
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_unknown_method_callback(python::method);
        environment.add_test("iterable", python::is_iterable);
        environment.add_test("sequence", python::is_sequence);
        environment.add_filter("tojson", python::to_json);
        environment.add_function("raise_exception", python::raise_exception);
        environment.add_function("strftime_now", move |format: String| date.strftime(&format));
        // The whitespace rules under which published templates are written.
        let syntax = minijinja::syntax::SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build();
        let added = syntax.and_then(|syntax| {
            environment.set_syntax(syntax);
            environment.add_template_owned("chat", without_generation_tags(template))
        });
        added.map_err(|e| format!("the chat template does not parse: {e}"))?;
        let reads = environment
            .get_template("chat")
            .map(|chat| chat.undeclared_variables(false));
        Ok(Self {
            reads: reads.unwrap_or_default(),
            environment,
        })
    }

    /// The template.
    pub(super) fn template(&self) -> Result<minijinja::Template<'_, '_>, minijinja::Error> {
        self.environment.get_template("chat")
    }
}

/// The template with `{% generation %}` … `{% endgeneration %}`, which mark what a policy wrote, as
/// `with` blocks without variables: a scope of their own is all that they have in `transformers`.
fn without_generation_tags(template: &str) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(at) = rest.find('{') {
        let (text, tag) = rest.split_at(at);
        out.push_str(text);
        rest = match tag.as_bytes().get(1) {
            Some(b'#') => moved(
                &mut out,
                tag,
                tag.find("#}").map_or(tag.len(), |end| end + 2),
            ),
            Some(b'{') => moved(&mut out, tag, end_of(tag, "}}")),
            Some(b'%') => block(&mut out, tag),
            _ => moved(&mut out, tag, 1),
        };
    }
    out + rest
}

/// Copies the first `bytes` of `from`; what is left of it.
fn moved<'a>(out: &mut String, from: &'a str, bytes: usize) -> &'a str {
    let (copied, rest) = from.split_at(bytes);
    out.push_str(copied);
    rest
}

/// Copies a block, under its new name if it is one of the two; what follows it.
fn block<'a>(out: &mut String, tag: &'a str) -> &'a str {
    let inside = tag[2..].trim_start_matches(['-', '+']).trim_start();
    let letters = inside.find(|c: char| !c.is_alphanumeric() && c != '_');
    let (name, after) = inside.split_at(letters.unwrap_or(inside.len()));
    let inert = match name {
        "generation" => "with",
        "endgeneration" => "endwith",
        // Nothing is a tag up to its end, which is one.
        "raw" => {
            let end = after.match_indices("endraw").find(|(at, _)| {
                let before = after[..*at].trim_end();
                before.trim_end_matches(['-', '+']).ends_with("{%")
            });
            let end = end.map_or(tag.len(), |(at, found)| {
                tag.len() - after.len() + at + found.len()
            });
            return moved(out, tag, end);
        }
        _ => return moved(out, tag, end_of(tag, "%}")),
    };
    out.push_str(&tag[..tag.len() - inside.len()]);
    out.push_str(inert);
    moved(out, after, end_of(after, "%}"))
}

/// Bytes up to and with `close`, which counts neither in a string nor within braces.
fn end_of(tag: &str, close: &str) -> usize {
    let bytes = tag.as_bytes();
    // The opening `{{` or `{%` of a tag is none of its braces.
    let mut at = if tag.starts_with('{') { 2 } else { 0 };
    let (mut quote, mut depth) = (None, 0_usize);
    while at < bytes.len() {
        let byte = bytes[at];
        match quote {
            Some(_) if byte == b'\\' => at += 1,
            Some(open) if byte == open => quote = None,
            Some(_) => {}
            None if depth == 0 && bytes[at..].starts_with(close.as_bytes()) => {
                return at + close.len();
            }
            None => match byte {
                b'"' | b'\'' => quote = Some(byte),
                b'{' => depth += 1,
                b'}' => depth = depth.saturating_sub(1),
                _ => {}
            },
        }
        at += 1;
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_tags_are_replaced_where_they_are_tags_alone() {
        for (from, to) in [
            (
                "a{% generation %}b{% endgeneration %}c",
                "a{% with %}b{% endwith %}c",
            ),
            (
                "{%- generation -%}x{%+endgeneration+%}",
                "{%- with -%}x{%+endwith+%}",
            ),
            (
                "{%\n generation\n%}{{ x }}{%endgeneration%}",
                "{%\n with\n%}{{ x }}{%endwith%}",
            ),
            ("{{ '{% generation %}' }}", "{{ '{% generation %}' }}"),
            (
                "{% set x = \"{% generation %}\\\"%}\" %}",
                "{% set x = \"{% generation %}\\\"%}\" %}",
            ),
            ("{# {% generation %} #}é", "{# {% generation %} #}é"),
            (
                "{% raw %}{% generation %}{%- endraw %}",
                "{% raw %}{% generation %}{%- endraw %}",
            ),
            (
                "{% set generation = {'a': {}} %}{{ {'a': {'{%': 1}}}}",
                "{% set generation = {'a': {}} %}{{ {'a': {'{%': 1}}}}",
            ),
            ("{% generations %}{ {%", "{% generations %}{ {%"),
            ("{{ 'open", "{{ 'open"),
        ] {
            assert_eq!(without_generation_tags(from), to);
        }
    }
}
