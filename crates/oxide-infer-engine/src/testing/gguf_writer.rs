use crate::gguf::TensorType;

/// Builds a GGUF file, valid or not: what it is given is written as it is.
#[derive(Clone, Debug)]
pub struct GgufWriter {
    version: u32,
    alignment: usize,
    entries: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    data: Vec<u8>,
}

impl Default for GgufWriter {
    fn default() -> Self {
        Self { version: 3, alignment: 32, entries: Vec::new(), tensors: Vec::new(), data: Vec::new() }
    }
}

impl GgufWriter {
    /// An empty file of version 3.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the version.
    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// Writes `general.alignment` and aligns the tensors that follow to it.
    pub fn alignment(mut self, alignment: u32) -> Self {
        self.alignment = alignment as usize;
        self.u32("general.alignment", alignment)
    }

    /// A value as raw bytes, with its type's number.
    pub fn raw(mut self, key: &str, value_type: u32, value: &[u8]) -> Self {
        let mut entry = counted(key.as_bytes());
        entry.extend(value_type.to_le_bytes());
        entry.extend(value);
        self.entries.push(entry);
        self
    }

    /// A `u32`.
    pub fn u32(self, key: &str, value: u32) -> Self {
        self.raw(key, 4, &value.to_le_bytes())
    }

    /// An `f32`.
    pub fn f32(self, key: &str, value: f32) -> Self {
        self.raw(key, 6, &value.to_le_bytes())
    }

    /// A boolean.
    pub fn boolean(self, key: &str, value: bool) -> Self {
        self.raw(key, 7, &[u8::from(value)])
    }

    /// A string.
    pub fn string(self, key: &str, value: &str) -> Self {
        self.raw(key, 8, &counted(value.as_bytes()))
    }

    /// An array of strings.
    pub fn strings(self, key: &str, values: &[&str]) -> Self {
        let bytes = values.iter().flat_map(|value| counted(value.as_bytes())).collect::<Vec<_>>();
        self.array(key, 8, values.len() as u64, &bytes)
    }

    /// An array of `i32`.
    pub fn i32s(self, key: &str, values: &[i32]) -> Self {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
        self.array(key, 5, values.len() as u64, &bytes)
    }

    /// An array of `f32`.
    pub fn f32s(self, key: &str, values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
        self.array(key, 6, values.len() as u64, &bytes)
    }

    /// An array as raw bytes, with its element type's number and the length it claims.
    pub fn array(self, key: &str, element_type: u32, len: u64, elements: &[u8]) -> Self {
        let mut value = element_type.to_le_bytes().to_vec();
        value.extend(len.to_le_bytes());
        value.extend(elements);
        self.raw(key, 9, &value)
    }

    /// A tensor, outermost dimension first, after the ones that are there.
    pub fn tensor(mut self, name: &str, shape: &[u64], tensor_type: TensorType, bytes: &[u8]) -> Self {
        self.data.resize(self.data.len().next_multiple_of(self.alignment), 0);
        let offset = self.data.len() as u64;
        self.data.extend(bytes);
        self.tensor_at(name, shape, tensor_type, offset)
    }

    /// Only the description of a tensor, at any offset.
    pub fn tensor_at(mut self, name: &str, shape: &[u64], tensor_type: TensorType, offset: u64) -> Self {
        let mut tensor = counted(name.as_bytes());
        tensor.extend((shape.len() as u32).to_le_bytes());
        shape.iter().rev().for_each(|dim| tensor.extend(dim.to_le_bytes()));
        tensor.extend(tensor_type.0.to_le_bytes());
        tensor.extend(offset.to_le_bytes());
        self.tensors.push(tensor);
        self
    }

    /// The file.
    pub fn build(&self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(self.version.to_le_bytes());
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.entries.len() as u64).to_le_bytes());
        file.extend(self.entries.concat());
        file.extend(self.tensors.concat());
        file.resize(file.len().next_multiple_of(self.alignment.max(1)), 0);
        file.extend(&self.data);
        file
    }
}

fn counted(bytes: &[u8]) -> Vec<u8> {
    let mut counted = (bytes.len() as u64).to_le_bytes().to_vec();
    counted.extend(bytes);
    counted
}
