//! The library's calls, looked up at run time.
//!
//! Types and numbers are those of [`cudarc::cublaslt::sys`]. Its own loader is not used: it knows neither a path nor version 13, and
//! ends the process where a symbol is missing. Enumerations pass as plain integers, since a library newer than the
//! bindings may return a status that they do not have.

use super::Search;
use crate::driver::LibraryError;
use cudarc::cublaslt::sys;
use std::error::Error as _;
use std::ffi::{c_int, c_void};
use std::path::PathBuf;

/// The oldest `cublasLtGetVersion` that is used.
const OLDEST: usize = 120_000;

/// Why cuBLASLt cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// It is in none of the places.
    #[error("cuBLASLt was not found; looked for {}", listed(.looked))]
    NotFound {
        /// The places, in the order in which they were tried.
        looked: Vec<Looked>,
    },
    /// The library lacks a call.
    #[error("{} has no {symbol}", .path.display())]
    Symbol {
        /// The library.
        path: PathBuf,
        /// The call.
        symbol: &'static str,
    },
    /// The library is too old.
    #[error("{} is of version {found}, at least {OLDEST} is needed", .path.display())]
    TooOld {
        /// The library.
        path: PathBuf,
        /// Its `cublasLtGetVersion`.
        found: usize,
    },
    /// The library does not start on the device.
    #[error("{}: {source}", .path.display())]
    Start {
        /// The library.
        path: PathBuf,
        /// Its answer.
        source: LibraryError,
    },
    /// The device's context is lost.
    #[error(transparent)]
    Cuda(#[from] crate::driver::CudaError),
}

/// A place in which the library was not found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Looked {
    /// A file, or a name that the dynamic loader looks for.
    pub place: PathBuf,
    /// The loader's answer.
    pub why: String,
}

fn listed(looked: &[Looked]) -> String {
    let lines = looked.iter().map(|Looked { place, why }| format!("{} ({why})", place.display()));
    lines.collect::<Vec<_>>().join("; ")
}

macro_rules! calls {
    ($($field:ident = $symbol:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The calls that are made, by address. They stay valid: the library is never unloaded.
        #[derive(Clone, Copy)]
        pub(super) struct Calls {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Calls {
            fn look_up(library: &libloading::Library) -> Result<Self, &'static str> {
                // SAFETY: each symbol has the signature that the library's documentation gives it, enumerations being `u32`.
                Ok(unsafe { Self {
                    $($field: *library.get(concat!($symbol, "\0").as_bytes()).map_err(|_| $symbol)?,)*
                } })
            }
        }
    };
}

calls! {
    version = "cublasLtGetVersion": fn() -> usize;
    create = "cublasLtCreate": fn(*mut sys::cublasLtHandle_t) -> u32;
    destroy = "cublasLtDestroy": fn(sys::cublasLtHandle_t) -> u32;
    desc_create = "cublasLtMatmulDescCreate": fn(*mut sys::cublasLtMatmulDesc_t, u32, u32) -> u32;
    desc_destroy = "cublasLtMatmulDescDestroy": fn(sys::cublasLtMatmulDesc_t) -> u32;
    desc_set = "cublasLtMatmulDescSetAttribute": fn(sys::cublasLtMatmulDesc_t, u32, *const c_void, usize) -> u32;
    layout_create = "cublasLtMatrixLayoutCreate": fn(*mut sys::cublasLtMatrixLayout_t, u32, u64, u64, i64) -> u32;
    layout_destroy = "cublasLtMatrixLayoutDestroy": fn(sys::cublasLtMatrixLayout_t) -> u32;
    preference_create = "cublasLtMatmulPreferenceCreate": fn(*mut sys::cublasLtMatmulPreference_t) -> u32;
    preference_destroy = "cublasLtMatmulPreferenceDestroy": fn(sys::cublasLtMatmulPreference_t) -> u32;
    preference_set = "cublasLtMatmulPreferenceSetAttribute": fn(sys::cublasLtMatmulPreference_t, u32, *const c_void, usize) -> u32;
    heuristic = "cublasLtMatmulAlgoGetHeuristic": fn(
        sys::cublasLtHandle_t,
        sys::cublasLtMatmulDesc_t,
        sys::cublasLtMatrixLayout_t,
        sys::cublasLtMatrixLayout_t,
        sys::cublasLtMatrixLayout_t,
        sys::cublasLtMatrixLayout_t,
        sys::cublasLtMatmulPreference_t,
        c_int,
        *mut HeuristicResult,
        *mut c_int
    ) -> u32;
    matmul = "cublasLtMatmul": fn(
        sys::cublasLtHandle_t,
        sys::cublasLtMatmulDesc_t,
        *const c_void,
        *const c_void,
        sys::cublasLtMatrixLayout_t,
        *const c_void,
        sys::cublasLtMatrixLayout_t,
        *const c_void,
        *const c_void,
        sys::cublasLtMatrixLayout_t,
        *mut c_void,
        sys::cublasLtMatrixLayout_t,
        *const sys::cublasLtMatmulAlgo_t,
        *mut c_void,
        usize,
        sys::cudaStream_t
    ) -> u32;
}

/// `cublasLtMatmulHeuristicResult_t`, with its status as an integer.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct HeuristicResult {
    pub(super) algo: sys::cublasLtMatmulAlgo_t,
    pub(super) workspace: usize,
    pub(super) state: u32,
    pub(super) waves: f32,
    pub(super) reserved: [c_int; 4],
}

const _: () = assert!(size_of::<HeuristicResult>() == size_of::<sys::cublasLtMatmulHeuristicResult_t>());

/// The library in this process.
pub(super) struct Library {
    pub(super) calls: Calls,
    pub(super) path: PathBuf,
    pub(super) version: usize,
}

impl Library {
    /// The first of the places that has one.
    pub(super) fn load(search: &Search) -> Result<Self, LoadError> {
        let mut looked = Vec::new();
        for place in search.places() {
            // SAFETY: loading runs the library's initialisers, which is what it is for; the place names that library.
            match unsafe { libloading::Library::new(&place) } {
                // CUDA's libraries register what runs at the end of the process, so they stay.
                Ok(library) => return Self::of(Box::leak(Box::new(library)), place),
                Err(error) => {
                    let why = error.source().map_or_else(|| error.to_string(), ToString::to_string);
                    looked.push(Looked { place, why });
                }
            }
        }
        Err(LoadError::NotFound { looked })
    }

    fn of(library: &libloading::Library, path: PathBuf) -> Result<Self, LoadError> {
        let calls = match Calls::look_up(library) {
            Ok(calls) => calls,
            Err(symbol) => return Err(LoadError::Symbol { path, symbol }),
        };
        // SAFETY: it takes nothing and reads a constant.
        let version = unsafe { (calls.version)() };
        if version < OLDEST {
            return Err(LoadError::TooOld { path, found: version });
        }
        Ok(Self { calls, path, version })
    }
}

/// Names what a call answered, unless it succeeded.
pub(super) fn check(call: &'static str, code: u32) -> Result<(), LibraryError> {
    let name = match code {
        0 => return Ok(()),
        1 => "CUBLAS_STATUS_NOT_INITIALIZED",
        3 => "CUBLAS_STATUS_ALLOC_FAILED",
        7 => "CUBLAS_STATUS_INVALID_VALUE",
        8 => "CUBLAS_STATUS_ARCH_MISMATCH",
        11 => "CUBLAS_STATUS_MAPPING_ERROR",
        13 => "CUBLAS_STATUS_EXECUTION_FAILED",
        14 => "CUBLAS_STATUS_INTERNAL_ERROR",
        NOT_SUPPORTED => "CUBLAS_STATUS_NOT_SUPPORTED",
        16 => "CUBLAS_STATUS_LICENSE_ERROR",
        _ => "a status that this version does not know",
    };
    Err(LibraryError { call, code, name })
}

/// What the library answers where no algorithm fits.
pub(super) const NOT_SUPPORTED: u32 = 15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_reported_with_every_place() {
        let folder = tempfile::tempdir().unwrap();
        let Err(LoadError::NotFound { looked }) = Library::load(&Search::At(folder.path().to_owned())) else {
            panic!("an empty folder has no library");
        };
        let expected = ["libcublasLt.so.13", "libcublasLt.so.12"].map(|name| folder.path().join(name));
        assert_eq!(looked.iter().map(|looked| looked.place.clone()).collect::<Vec<_>>(), expected);
        let text = LoadError::NotFound { looked }.to_string();
        assert!(
            text.starts_with("cuBLASLt was not found; looked for ") && text.contains("No such file"),
            "{text}"
        );
    }

    #[test]
    fn a_library_that_is_another_names_the_call_it_lacks() {
        let error = Library::load(&Search::At("libc.so.6".into())).err();
        let path = PathBuf::from("libc.so.6");
        assert_eq!(error, Some(LoadError::Symbol { path, symbol: "cublasLtGetVersion" }));
    }

    #[test]
    fn statuses_have_the_numbers_of_the_library() {
        use sys::cublasStatus_t as S;
        for status in [
            S::CUBLAS_STATUS_NOT_INITIALIZED,
            S::CUBLAS_STATUS_ALLOC_FAILED,
            S::CUBLAS_STATUS_INVALID_VALUE,
            S::CUBLAS_STATUS_ARCH_MISMATCH,
            S::CUBLAS_STATUS_MAPPING_ERROR,
            S::CUBLAS_STATUS_EXECUTION_FAILED,
            S::CUBLAS_STATUS_INTERNAL_ERROR,
            S::CUBLAS_STATUS_NOT_SUPPORTED,
            S::CUBLAS_STATUS_LICENSE_ERROR,
        ] {
            let error = check("cublasLtMatmul", status as u32).unwrap_err();
            assert_eq!(error.name, format!("{status:?}"));
        }
        assert_eq!(check("cublasLtMatmul", 0), Ok(()));
        assert_eq!(
            check("a", 99).unwrap_err().to_string(),
            "a failed: a status that this version does not know (99)"
        );
    }
}
