//! `import FILE.gguf`: a model's folder of a GGUF file, and what its number formats lost.

use crate::cli::{Global, ImportArgs};
use crate::export::folder::check_free;
use crate::text::{bytes, count, quoted};
use crate::transfer::Transfer;
use crate::{Error, Result, text};
use agentgym_model::Imported;
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A number format of the file.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct FormatLine {
    format: String,
    tensors: u64,
    parameters: u64,
}

/// `import FILE.gguf --to DIR`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ImportDocument<'a> {
    file: &'a Path,
    folder: String,
    model_type: String,
    parameters: u64,
    formats: Vec<FormatLine>,
    bits: f64,
    dtype: String,
    bytes: u64,
    tokenizer_ids: usize,
    pre_tokenizer: String,
    chat_template: bool,
}

/// Writes the folder, and prints what it holds.
///
/// # Errors
/// A file that cannot be imported, a folder that is taken or cannot be written.
pub(crate) async fn import(args: &ImportArgs, global: &Global) -> Result<()> {
    check_free(&args.to)?;
    let transfer = Transfer::new("import", global);
    let (from, to, dtype) = (args.file.clone(), args.to.clone(), args.save_dtype);
    let moved = Arc::clone(&transfer.bytes);
    let work = tokio::task::spawn_blocking(move || {
        agentgym_model::import(&from, &to, dtype, &mut |done, all| {
            moved.done.store(done, Relaxed);
            moved.listed.store(all, Relaxed);
        })
    });
    let imported = match transfer.during(work).await {
        Ok(imported) => imported,
        Err(e) => return Err(Error::Worker(e.to_string())),
    };
    let imported = imported.map_err(|e| match e {
        agentgym_model::Error::Io { path, source } if path != args.file => {
            Error::Local { path, source }
        }
        other => Error::Usage(other.to_string()),
    })?;
    let to = args.to.display().to_string();
    if global.json {
        let formats = imported.formats.iter().map(|of| FormatLine {
            format: of.format.to_string(),
            tensors: of.tensors,
            parameters: of.parameters,
        });
        text::emit_json(&ImportDocument {
            file: &args.file,
            folder: to.clone(),
            model_type: imported.family.to_string(),
            parameters: imported.parameters(),
            formats: formats.collect(),
            bits: imported.bits,
            dtype: dtype.to_string(),
            bytes: imported.bytes,
            tokenizer_ids: imported.tokens,
            pre_tokenizer: imported.pre_tokenizer.to_string(),
            chat_template: imported.chat_template,
        });
    } else {
        text::emit(&summary(args, &imported));
    }
    if !global.quiet {
        let to = quoted(&to);
        text::tell(&format!(
            "import: `agentgym-submit check-model {to}` says what can be done with it; a run takes it as \
             actor_rollout_ref.model.path={to}"
        ));
    }
    Ok(())
}

/// The paragraph for people: what the file holds, and what its formats have lost.
fn summary(args: &ImportArgs, imported: &Imported) -> String {
    let parameters = imported.parameters();
    let share = |part: u64| match 100.0 * part as f64 / parameters as f64 {
        share if share < 0.1 => "less than 0.1 %".to_owned(),
        share => format!("{share:.1} %"),
    };
    let formats = imported.formats.iter();
    let formats =
        formats.map(|format| format!("{} in {}", share(format.parameters), format.format));
    let formats: Vec<String> = formats.collect();
    let lost = match imported.formats.iter().any(|format| format.quantised) {
        true => {
            ", where the model that the file was made from had 16 or 32. What that rounding lost does not come back; \
             where that model's own folder is at hand, train it instead"
        }
        false => "; none was rounded to fewer than 16",
    };
    let template = match imported.chat_template {
        true => String::new(),
        false => format!(
            " The file has no chat template, which a policy needs: put that of the model into {}.",
            Path::new(&args.to).join("chat_template.jinja").display()
        ),
    };
    format!(
        "{to}: {family}, {count} parameters ({formats}), {bits:.2} bits each{lost}. The folder holds the numbers that the \
         file stands for, in {dtype} ({bytes}), and its tokenizer of {tokens} ids, which splits text as {pre}.{template}",
        to = args.to.display(),
        family = imported.family,
        count = count(parameters),
        formats = formats.join(", "),
        bits = imported.bits,
        dtype = args.save_dtype,
        bytes = bytes(imported.bytes),
        tokens = count(imported.tokens as u64),
        pre = imported.pre_tokenizer,
    )
}
