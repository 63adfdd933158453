// Package admin is the operator's side of kmirror: the admin listener with KIP-1279's RPCs and the client that the commands
// use. The KIP's keys collide with Kafka 4.4's (94 is UnregisterController), so they are served here only, never on a broker
// listener.
package admin

// Exit codes of the commands.
const (
	ExitOK          = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitIncomplete  = 3
	ExitRefused     = 4
	ExitUnreachable = 5
	ExitDiffers     = 6
)

// Error is a refusal or failure as the operator sees it. Code is Kafka's or KIP-1279's error code; Hint says what to do;
// Exit is the exit code of the command that met it, 0 meaning ExitFailed.
type Error struct {
	Code    int16  `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint"`
	Exit    int    `json:"exit,omitempty"`
}

// Error returns the message without the hint.
func (e *Error) Error() string { return e.Message }
