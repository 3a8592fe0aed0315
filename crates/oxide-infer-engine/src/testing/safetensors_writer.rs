use serde_json::{Map, json};

/// A safetensors file of named tensors: name, the format's type name, shape, bytes. What it is given is written as it
/// is.
pub fn safetensors_file(tensors: &[(&str, &str, &[u64], &[u8])]) -> Vec<u8> {
    let mut header = Map::new();
    let mut data = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        header.insert((*name).to_owned(), json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}));
        data.extend_from_slice(bytes);
    }
    safetensors_file_of(&json!(header).to_string(), &data)
}

/// A safetensors file of a header's text and data.
pub fn safetensors_file_of(header: &str, data: &[u8]) -> Vec<u8> {
    let length = header.len() as u64;
    [&length.to_le_bytes()[..], header.as_bytes(), data].concat()
}
