//! A model folder in Hugging Face's layout: the names of its files, and how they are read
//! and written.

pub(crate) mod adapter;
pub(crate) mod chat;
pub(crate) mod config;
pub(crate) mod family;
pub(crate) mod files;
pub(crate) mod names;
pub(crate) mod parameter;
mod reader;
pub(crate) mod rope;
pub(crate) mod tensor_file;
pub(crate) mod tokenizer;
pub(crate) mod weights;
