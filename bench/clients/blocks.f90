! Products on Fortran's own arrays, block-cyclic ones, through pdla.h: a part of C = A^H B, on the odd ranks' communicator and the
! even ranks' at once.
!
!     mpirun -n 4 ./blocks_f                "blocks: right" from the first process, status 0
program blocks
  use iso_c_binding
  use mpi
  use pdla
  implicit none
  integer, parameter :: m = 40, n = 30, k = 50
  character(*), parameter :: dealt = "rows=Cyclic('row', 4), cols=Cyclic('col', 3)" // c_null_char
  complex(c_double_complex), allocatable, target :: a(:, :), b(:, :), c(:, :)
  complex(c_double_complex), target :: alpha = (1, 0), beta = (0, 0)
  integer(c_int64_t) :: grid, ha, hb, hc, part_a, part_c
  integer :: rank, half, size, shape(2), place(2), ierr
  logical :: wrong, any

  call mpi_init(ierr)
  call mpi_comm_rank(mpi_comm_world, rank, ierr)
  call mpi_comm_split(mpi_comm_world, mod(rank, 2), rank, half, ierr)
  call mpi_comm_size(half, size, ierr)
  shape = [1, size]
  place = [0, rank / 2]
  call check(pdla_grid(half, 2, shape, grid))
  call make(k, m, a, ha)
  call make(k, n, b, hb)
  call make(m, n, c, hc)
  call fill(a, k, m, 1)
  call fill(b, k, n, 2)
  c = (9, 9)
  call check(pdla_part(ha, 0_c_int64_t, int(k, c_int64_t), 5_c_int64_t, int(m, c_int64_t), part_a))
  call check(pdla_part(hc, 5_c_int64_t, int(m, c_int64_t), 0_c_int64_t, int(n, c_int64_t), part_c))
  call check(pdla_gemm('C', 'N', c_loc(alpha), part_a, hb, c_loc(beta), part_c))
  wrong = .not. right()
  call mpi_allreduce(wrong, any, 1, mpi_logical, mpi_lor, mpi_comm_world, ierr)
  if (rank == 0) print '(a)', 'blocks: ' // merge('WRONG', 'right', any)
  call mpi_comm_free(half, ierr)
  call check(pdla_free(hc))
  if (pdla_free(hc) /= pdla_handle_error) stop 2
  call mpi_finalize(ierr)
  if (any) stop 1

contains

  subroutine check(status)
    integer(c_int), intent(in) :: status
    character(kind=c_char), pointer :: text(:)
    if (status == 0) return
    call c_f_pointer(pdla_error(), text, [4096])
    print '(*(a))', text(: findloc(text, c_null_char, 1) - 1)
    call mpi_abort(mpi_comm_world, 1, ierr)
  end subroutine check

  subroutine make(rows, cols, x, handle)
    integer, intent(in) :: rows, cols
    complex(c_double_complex), allocatable, target, intent(out) :: x(:, :)
    integer(c_int64_t), intent(out) :: handle
    integer(c_int64_t) :: held(2)
    call check(pdla_local_shape(grid, int(rows, c_int64_t), int(cols, c_int64_t), dealt, held(1), held(2)))
    allocate (x(max(1_c_int64_t, held(1)), max(1_c_int64_t, held(2))))
    call check(pdla_matrix(grid, 'z', int(rows, c_int64_t), int(cols, c_int64_t), dealt, c_loc(x), 1_c_int64_t, &
         int(ubound(x, 1), c_int64_t), handle))
  end subroutine make

  ! The global column, from 1, of a local one: rows are all here, on a grid of one row.
  integer function column(j)
    integer, intent(in) :: j
    column = ((j - 1) / 3 * size + place(2)) * 3 + mod(j - 1, 3) + 1
  end function column

  complex(c_double_complex) function element(i, j, seed)
    integer, intent(in) :: i, j, seed
    element = cmplx(mod(i * 3 + j + seed, 5) - 2, mod(i + j * 2 + seed, 3) - 1, c_double_complex)
  end function element

  subroutine fill(x, rows, cols, seed)
    complex(c_double_complex), intent(inout) :: x(:, :)
    integer, intent(in) :: rows, cols, seed
    integer :: i, j
    do j = 1, ubound(x, 2)
       if (column(j) > cols) exit
       do i = 1, rows
          x(i, j) = element(i, column(j), seed)
       end do
    end do
  end subroutine fill

  logical function right()
    integer :: i, j, l
    complex(c_double_complex) :: sum
    right = .true.
    do j = 1, ubound(c, 2)
       if (column(j) > n) exit
       do i = 1, m
          sum = (9, 9)
          if (i > 5) then
             sum = 0
             do l = 1, k
                sum = sum + conjg(element(l, i, 1)) * element(l, column(j), 2)
             end do
          end if
          right = right .and. c(i, j) == sum
       end do
    end do
  end function right

end program blocks
