// Package fakepeer has the loop of scripted brokers and controllers, by which tests say what a real one would not say on demand.
package fakepeer

import (
	"fmt"
	"net"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

// Serve reads requests from nc and writes what answer returns, one after the other, until the other side is gone or answer returns nil. It
// closes nc. The error says that something came which is no request.
func Serve(nc net.Conn, answer func(kmsg.Request) kmsg.Response) error {
	defer nc.Close()
	for {
		frame, err := protocol.ReadFrame(nc, protocol.DefaultMaxFrame, nil)
		if err != nil {
			return nil // gone, or cut off by the test's end
		}
		h, body, err := protocol.ParseRequestHeader(frame)
		if err != nil {
			return fmt.Errorf("header of a request: %w", err)
		}
		req, err := protocol.DecodeRequest(h, body)
		if err != nil {
			return fmt.Errorf("request: %w", err)
		}
		resp := answer(req)
		if resp == nil {
			return nil
		}
		resp.SetVersion(h.Version)
		if _, err := nc.Write(protocol.AppendResponse(nil, h.CorrelationID, resp)); err != nil {
			return nil
		}
	}
}
