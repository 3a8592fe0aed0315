//! What a cubin says about its kernels: entry symbols and parameter sizes, read from the ELF file.
//!
//! Enough of ELF64 and of NVIDIA's `.nv.info` notes to hold a manifest to the machine code it describes, without a driver.

use std::collections::BTreeMap;
use thiserror::Error;

const MAGIC: &[u8] = b"\x7fELF\x02\x01";
const SECTION_HEADER_SIZE: usize = 64;
const NO_BITS: u32 = 8;
const PARAMETER_INFO: u8 = 0x17;
/// `.nv.info` attribute formats 1 to 3 carry their value in the header's last two bytes; format 4 carries a payload.
const SIZED_FORMAT: u8 = 4;

/// Why a cubin could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ElfError {
    /// Not a 64-bit little-endian ELF file.
    #[error("not a 64-bit little-endian ELF file")]
    NotElf,
    /// A table or string lies outside the file.
    #[error("truncated or inconsistent ELF file")]
    Truncated,
    /// A kernel's notes are in a form that this version does not know.
    #[error("unknown kernel attribute format {0}")]
    UnknownFormat(u8),
}

/// Parameter sizes in bytes, in order, of every kernel of `cubin` by entry symbol.
pub fn kernel_parameters(cubin: &[u8]) -> Result<BTreeMap<String, Vec<u32>>, ElfError> {
    let sections = sections(cubin)?;
    let is_code = |symbol: &str| sections.iter().any(|(name, _)| name.strip_prefix(".text.") == Some(symbol));
    sections
        .iter()
        .filter_map(|(name, data)| Some((name.strip_prefix(".nv.info.")?, *data)))
        .filter(|(symbol, _)| is_code(symbol))
        .map(|(symbol, data)| Ok((symbol.to_owned(), parameter_sizes(data)?)))
        .collect()
}

fn sections(elf: &[u8]) -> Result<Vec<(&str, &[u8])>, ElfError> {
    if !elf.starts_with(MAGIC) {
        return Err(ElfError::NotElf);
    }
    let table = offset(u64_at(elf, 0x28)?)?;
    let count = usize::from(u16_at(elf, 0x3c)?);
    let names_index = usize::from(u16_at(elf, 0x3e)?);
    let header = |index: usize| {
        let start = index.checked_mul(SECTION_HEADER_SIZE).and_then(|skip| skip.checked_add(table));
        slice(elf, start.ok_or(ElfError::Truncated)?, SECTION_HEADER_SIZE)
    };
    let contents = |header: &[u8]| {
        if u32_at(header, 4)? == NO_BITS {
            return Ok(&elf[..0]);
        }
        slice(elf, offset(u64_at(header, 24)?)?, offset(u64_at(header, 32)?)?)
    };
    let names = contents(header(names_index)?)?;
    (0..count)
        .map(|index| {
            let header = header(index)?;
            Ok((string_at(names, u32_at(header, 0)?)?, contents(header)?))
        })
        .collect()
}

fn parameter_sizes(mut info: &[u8]) -> Result<Vec<u32>, ElfError> {
    let mut sizes = BTreeMap::new();
    while info.len() >= 4 {
        let (format, attribute, length) = (info[0], info[1], usize::from(u16_at(info, 2)?));
        info = &info[4..];
        match format {
            1..SIZED_FORMAT => {}
            SIZED_FORMAT => {
                let payload = slice(info, 0, length)?;
                info = &info[length..];
                if attribute == PARAMETER_INFO {
                    sizes.insert(u16_at(payload, 4)?, u32_at(payload, 8)? >> 18);
                }
            }
            unknown => return Err(ElfError::UnknownFormat(unknown)),
        }
    }
    Ok(sizes.into_values().collect())
}

fn string_at(names: &[u8], start: u32) -> Result<&str, ElfError> {
    let rest = names.get(start as usize..).ok_or(ElfError::Truncated)?;
    let length = rest.iter().position(|&byte| byte == 0).ok_or(ElfError::Truncated)?;
    std::str::from_utf8(&rest[..length]).map_err(|_| ElfError::Truncated)
}

fn slice(data: &[u8], start: usize, length: usize) -> Result<&[u8], ElfError> {
    let end = start.checked_add(length).ok_or(ElfError::Truncated)?;
    data.get(start..end).ok_or(ElfError::Truncated)
}

fn offset(value: u64) -> Result<usize, ElfError> {
    usize::try_from(value).map_err(|_| ElfError::Truncated)
}

fn array_at<const N: usize>(data: &[u8], at: usize) -> Result<[u8; N], ElfError> {
    slice(data, at, N)?.try_into().map_err(|_| ElfError::Truncated)
}

fn u16_at(data: &[u8], at: usize) -> Result<u16, ElfError> {
    Ok(u16::from_le_bytes(array_at(data, at)?))
}

fn u32_at(data: &[u8], at: usize) -> Result<u32, ElfError> {
    Ok(u32::from_le_bytes(array_at(data, at)?))
}

fn u64_at(data: &[u8], at: usize) -> Result<u64, ElfError> {
    Ok(u64::from_le_bytes(array_at(data, at)?))
}
