//! A model folder in Hugging Face's layout: the names of its files, and how they are read
//! and written.

pub(crate) mod adapter;
pub(crate) mod chat;
pub(crate) mod config;
pub(crate) mod family;
pub(crate) mod files;
pub(crate) mod layout;
pub(crate) mod names;
pub(crate) mod parameter;
pub(crate) mod reader;
pub(crate) mod rope;
pub(crate) mod shards;
pub(crate) mod tensor_file;
pub(crate) mod tokenizer;
pub(crate) mod twice;
pub(crate) mod weight_files;
pub(crate) mod weights;
