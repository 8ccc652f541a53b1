//! Values of a `config.json`, with errors that name the file.

use std::path::Path;

use serde_json::{Map, Value};

use crate::{Error, Result};

/// Reads values of a `config.json`; its errors name the file.
pub(crate) struct Reader<'a> {
    pub(crate) raw: &'a Map<String, Value>,
    pub(crate) path: &'a Path,
}

impl Reader<'_> {
    pub(crate) fn bad(&self, message: String) -> Error {
        Error::Json {
            path: self.path.to_owned(),
            message,
        }
    }

    pub(crate) fn unsupported(&self, message: String) -> Error {
        Error::Unsupported {
            path: self.path.to_owned(),
            message,
        }
    }

    pub(crate) fn number(&self, key: &str) -> Result<Option<f64>> {
        match self.raw.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_f64() {
                Some(number) => Ok(Some(number)),
                None => Err(self.bad(format!("{key} must be a number, found {value}"))),
            },
        }
    }

    pub(crate) fn size(&self, key: &str) -> Result<usize> {
        match self.raw.get(key).map(|value| (value, value.as_u64())) {
            Some((_, Some(size))) if size > 0 => Ok(size as usize),
            Some((value, _)) => Err(self.bad(format!(
                "{key} must be a positive whole number, found {value}"
            ))),
            None => Err(self.bad(format!("{key} is missing"))),
        }
    }

    /// A switch; absent and null are `false`, as in `transformers`.
    pub(crate) fn switch(&self, key: &str) -> Result<bool> {
        match self.raw.get(key) {
            None | Some(Value::Null) => Ok(false),
            Some(value) => value
                .as_bool()
                .ok_or_else(|| self.bad(format!("{key} must be true or false, found {value}"))),
        }
    }
}
