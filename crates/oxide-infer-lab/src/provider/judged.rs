//! The host's verdict on index operands, and the device's.

use oxide_infer::conformance::Refusal;
use oxide_infer::{Contract, DataError};
use oxide_infer_cuda::artifact::status::DeviceStatus;

/// What the contract says of the indices of a call.
pub(super) struct Judged(pub(super) Contract, pub(super) Result<(), DataError>);

/// Whether a device's report is that of the host: the same kind of fault, and the same place where both give it.
pub(super) fn agrees(found: DeviceStatus, contract: Contract, error: DataError) -> bool {
    use DeviceStatus::{
        IndexOutOfRange, LengthOutOfRange, PageOutOfRange, PositionOutOfRange, StartOutOfRange,
    };
    match (error, found) {
        (DataError::Token { row, .. }, IndexOutOfRange { index }) => row == index as usize,
        // An append counts tokens where attention counts sequences.
        (DataError::Page { .. }, PageOutOfRange { .. })
            if [Contract::ROPE_APPEND, Contract::PAGED_APPEND].contains(&contract) =>
        {
            true
        }
        (DataError::Page { sequence, .. }, PageOutOfRange { sequence: found }) => sequence == found as usize,
        (
            DataError::KvLen { sequence, .. } | DataError::QueryLongerThanKv { sequence, .. },
            LengthOutOfRange { sequence: found },
        ) => sequence == found as usize,
        (
            DataError::Position { token, .. },
            PositionOutOfRange { token: found } | LengthOutOfRange { sequence: found },
        ) => token == found as usize,
        (DataError::Start { entry, .. }, StartOutOfRange { entry: found }) => entry == found as usize,
        _ => false,
    }
}

/// Whether a fault is but that tokens are left over after the last sequence, which prefill admits and leaves alone.
pub(super) fn is_padding(contract: Contract, error: DataError) -> bool {
    let DataError::Start { start, low, high, .. } = error else { return false };
    [Contract::PAGED_PREFILL, Contract::RAGGED_PREFILL].contains(&contract)
        && low == high
        && usize::try_from(start).is_ok_and(|start| start < high)
}

pub(super) fn disagreement(found: Option<DeviceStatus>, judged: Result<(), DataError>) -> Refusal {
    let device = found.map_or("no fault".to_owned(), |fault| fault.to_string());
    let host = judged.err().map_or("no fault".to_owned(), |error| error.to_string());
    Refusal::Failed(format!("the device found {device}; the host found {host}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_must_be_of_the_kind_and_the_place_of_the_fault() {
        let page = DataError::Page { sequence: 3, entry: 0, page: -1, num_pages: 9 };
        let says = |contract, sequence| agrees(DeviceStatus::PageOutOfRange { sequence }, contract, page);
        assert!(says(Contract::PAGED_DECODE, 3));
        assert!(!says(Contract::PAGED_DECODE, 2));
        assert!(says(Contract::ROPE_APPEND, 7), "an append reports the token");
        assert!(says(Contract::PAGED_APPEND, 7), "an append reports the token");
        assert!(!agrees(DeviceStatus::LengthOutOfRange { sequence: 3 }, Contract::PAGED_DECODE, page));
        let start = DataError::Start { operand: "query_start", entry: 1, start: 6, low: 0, high: 5 };
        assert!(!is_padding(Contract::PAGED_PREFILL, start));
        let says = |entry| agrees(DeviceStatus::StartOutOfRange { entry }, Contract::PAGED_PREFILL, start);
        assert!(says(1));
        assert!(!says(2));
        assert!(!agrees(DeviceStatus::LengthOutOfRange { sequence: 1 }, Contract::PAGED_PREFILL, start));
    }

    #[test]
    fn only_tokens_after_the_last_sequence_of_a_prefill_are_padding() {
        let end = |start| DataError::Start { operand: "query_start", entry: 2, start, low: 5, high: 5 };
        assert!(is_padding(Contract::PAGED_PREFILL, end(4)));
        assert!(!is_padding(Contract::PAGED_PREFILL, end(6)));
        assert!(!is_padding(Contract::PAGED_PREFILL, end(-1)));
        assert!(!is_padding(Contract::ROPE_APPEND, end(4)));
        assert!(is_padding(Contract::RAGGED_PREFILL, end(4)));
        let first = DataError::Start { operand: "query_start", entry: 0, start: 1, low: 0, high: 0 };
        assert!(!is_padding(Contract::PAGED_PREFILL, first));
    }
}
